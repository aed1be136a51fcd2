"""The folder that the tool works in: what it may read and write, and where it keeps its own files.

Everything of ours lies in `base_dir/.sharpen`. A path that leads out of the base folder is refused, however it does so:
as it is written, by `..`, or through a link.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import ConfigError
from .errors import ParameterError

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
