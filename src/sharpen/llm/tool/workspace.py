"""The folder that the tool works in: what it may read and write, and where it keeps its own files.

Everything of ours lies in `base_dir/.sharpen`. A path that leads out of the base folder is refused, however it does so:
as it is written, by `..`, or through a link. A model is one in the base folder, or one on the hub where that is
allowed.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...checks import did_you_mean
from ...errors import ConfigError
from ...secrets import shown
from ..errors import ModelError
from ..models.hub import is_downloaded
from ..models.source import ModelSource, find_model
from .errors import JobError, ParameterError

_OWN = ".sharpen"


class Workspace:
    """A base folder. It is made with the first thing that is written."""

    def __init__(self, base_dir: str | os.PathLike[str]) -> None:
        self.base = Path(base_dir).expanduser().resolve()
        if self.base.exists() and not self.base.is_dir():
            raise ConfigError(f"base_dir is {str(base_dir)!r}, which is a file: pass a folder")
        self.own = self.base / _OWN
        self.jobs = self.own / "jobs"
        self.rewards = self.own / "rewards.json"

    def path(self, key: str, value: str) -> Path:
        """The path that `value` names; a ParameterError under `key` where it leads out of the base folder."""
        try:
            path = (self.base / Path(value).expanduser()).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a name too long, no home
            raise ParameterError.of(key, value, f"this is not a valid path ({error})") from error
        if not path.is_relative_to(self.base):
            raise ParameterError.of(
                key,
                value,
                f"it resolves to {str(path)!r}, outside the base folder {str(self.base)!r}: use a path inside it",
            )
        return path

    def output_path(self, key: str, value: str) -> Path:
        """A folder to write to: inside the base folder, and not where the tool keeps its own files."""
        path = self.path(key, value)
        if path == self.base or path.is_relative_to(self.own):
            raise ParameterError.of(key, value, "results cannot be written there: use a folder such as './output/sft'")
        blocked = next((each for each in (path, *path.parents) if each.exists() and not each.is_dir()), None)
        if blocked is not None:
            raise ParameterError.of(key, value, f"{str(blocked)!r} is a file: use a folder")
        return path

    def prepare(self) -> None:
        """Make our own folders."""
        self.jobs.mkdir(parents=True, exist_ok=True)
        if self.jobs.resolve() != self.jobs:
            raise ConfigError(f"{str(self.own)!r} is a link to outside the base folder: remove it")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; the kernel lets go when its holder dies."""
        self.prepare()
        handle = os.open(self.own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


# -- the models that a call may name ------------------------------------------------------------------


def check_model(workspace: Workspace, key: str, name: str, *, allow_download: bool) -> str:
    """The model as a job names it: an absolute path, or a name on the hub."""
    path = workspace.path(key, name) if _is_path(name) or (workspace.base / name).exists() else None
    try:
        source = find_model(name if path is None else str(path))
    except ModelError as error:
        raise ParameterError.of(key, name, str(error)) from error
    check_source(workspace, key, name, source, allow_download=allow_download)
    return source.name if source.path is None else str(source.path)


def check_source(workspace: Workspace, key: str, name: str, source: ModelSource, *, allow_download: bool) -> None:
    """Neither a model nor the base of an adapter lies where this tool may not read."""
    if source.base is not None:
        check_source(workspace, key, name, source.base, allow_download=allow_download)
    if source.path is None:
        if not allow_download and not is_downloaded(source.name):
            raise ParameterError.of(
                key,
                name,
                f"the model {source.name!r} is neither a folder in {str(workspace.base)!r} nor in the hub cache, "
                "and downloads are disabled: pass a folder or a .gguf file, or enable downloads "
                "(allow_download=True)",
            )
    elif not _may_read(workspace, source.path):
        raise ParameterError.of(
            key,
            name,
            f"its files are in {str(source.path)!r}, outside the base folder {str(workspace.base)!r}: "
            "use a model inside it",
        )


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith(".gguf") or name.count("/") > 1 or "\\" in name


def _may_read(workspace: Workspace, path: Path) -> bool:
    """The base folder, and where GGUF files are converted to: the base of an adapter may lie there."""
    from ..models.gguf import cache_folder

    return path.is_relative_to(workspace.base) or path.is_relative_to(cache_folder().resolve())


# -- names of data sets and rewards -------------------------------------------------------------------


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def check_name(kind: str, name: object) -> str:
    """A name that can stand in JSON, on a screen and beside paths."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name of a {kind} is {shown(name)}: use at most 64 letters, digits, '_', '-' and '.', "
            "starting with a letter"
        )
    return name


def unknown(kind: str, name: str, known: list[str]) -> str:
    """The words for a name that nothing has."""
    return f"this {kind} does not exist; available: {', '.join(known) or 'none'}.{did_you_mean(name, known)}"


# -- JSON files ---------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no file, and a JobError where it holds none."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise JobError(f"cannot read {str(path)!r} ({error}): remove it, or its folder") from error
    if not isinstance(value, dict):
        raise JobError(f"{str(path)!r} does not contain a JSON object: remove it, or its folder")
    return value
