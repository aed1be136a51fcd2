"""Models on the Hugging Face hub, fetched into its cache folder.

The size of a download is logged before it begins. A download that fails or is killed leaves no model behind: the cache
does not return a snapshot with missing files, and the next download removes what a killed one left.
"""

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ...checks import needs_extra
from ...errors import MissingExtraError, describe
from ...files import describe_size, is_disk_full
from ..errors import ModelError

log = logging.getLogger(__name__)

# Weights as safetensors, tokenizer, templates and settings; not the same weights in other formats.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_UNWANTED = ["*/*", "consolidated*"]
_ABANDONED_SECONDS = 60.0  # a running download writes more often


@dataclass(frozen=True)
class Download:
    """The files of a model that are not in the cache yet."""

    name: str
    num_files: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{describe_size(self.size_bytes)} in {self.num_files} files"


def hub_folder(name: str, *, allow_download: bool = True, trust_remote_code: bool = False) -> Path:
    """Return the folder of a model of the hub, downloaded if it is not in the cache yet."""
    if allow_download:
        announce_download(name, trust_remote_code=trust_remote_code)
    with _as_model_error(name, allow_download=allow_download):
        return Path(_snapshot(name, trust_remote_code=trust_remote_code, local_files_only=not allow_download))


def is_downloaded(name: str) -> bool:
    """Return whether the whole model is in the cache."""
    try:
        _snapshot(name, local_files_only=True)
    except (OSError, ValueError):
        return False
    return True


def announce_download(name: str, *, trust_remote_code: bool = False) -> Download | None:
    """Log and return what has to be downloaded of a model.

    None if nothing is missing, or if the hub cannot be reached but the model is in the cache. A ModelError if the hub
    does not have the model or the disk is too small.
    """
    from huggingface_hub.errors import DryRunError

    with _as_model_error(name, allow_download=True), _without_bars():
        try:
            planned = _snapshot(name, trust_remote_code=trust_remote_code, dry_run=True)
        except DryRunError:
            _snapshot(name, trust_remote_code=trust_remote_code)
            return None
    missing = [each for each in planned if each.will_download]
    if not missing:
        return None
    found = Download(name, len(missing), sum(each.file_size or 0 for each in missing))
    folder = _cache()
    _remove_abandoned(name, folder)
    free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
    if found.size_bytes > free:
        raise ModelError(
            f"the model {name!r} needs {found}, but only {describe_size(free)} are free in {str(folder)!r}: free some "
            "space, or set HF_HOME to a folder on another disk"
        )
    log.warning("downloading the model %r from the hub to %s: %s", name, folder, found)
    return found


def turn_telemetry_off() -> None:
    """Turn off the telemetry of the hub's client, unless the user's environment turns it on."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None and os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1":
        vars(constants)["HF_HUB_DISABLE_TELEMETRY"] = True  # It read the variable on import.


def _snapshot(name: str, *, trust_remote_code: bool = False, **how: Any) -> Any:
    turn_telemetry_off()
    with needs_extra("huggingface_hub", extra="llm", feature="a model from the hub"):
        from huggingface_hub import snapshot_download
    wanted = [*_WANTED, "*.py"] if trust_remote_code else _WANTED
    return snapshot_download(name, allow_patterns=wanted, ignore_patterns=_UNWANTED, **how)


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _remove_abandoned(name: str, folder: Path) -> None:
    """Remove the incomplete files of a killed download."""
    for file in (folder / f"models--{name.replace('/', '--')}" / "blobs").glob("*.incomplete"):
        if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
            file.unlink(missing_ok=True)


@contextmanager
def _without_bars() -> Iterator[None]:
    utils: Any = import_module("huggingface_hub.utils")
    was_off = utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        yield
    finally:
        if not was_off:
            utils.enable_progress_bars()


@contextmanager
def _as_model_error(name: str, *, allow_download: bool) -> Iterator[None]:
    """Turn any error of the hub or its cache folder into a ModelError that says what to do."""
    try:
        yield
    except MissingExtraError:
        raise
    except Exception as error:
        reason = " ".join(describe(error).split())[:300]
        if _is_disk_error(error):
            raise ModelError(
                f"the model {name!r} cannot be stored in the cache {str(_cache())!r} ({reason}): free some space and "
                "make the folder writable, or set HF_HOME to another folder"
            ) from error
        raise ModelError(f"the model {name!r} cannot be found: {_advice(error, allow_download)} ({reason})") from error


def _is_disk_error(error: Exception) -> bool:
    """Return whether a local file could not be read or written; a network error does not name a file."""
    return is_disk_full(error) or (isinstance(error, OSError) and error.filename is not None)


def _advice(error: Exception, allow_download: bool) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    here = "there is no folder with that name"
    if not allow_download:
        return f"{here}, it was not downloaded before, and allow_download is off: turn it on, or pass a folder"
    if isinstance(error, GatedRepoError):
        return f"{here}, and its terms must be accepted on the hub first: do so, and set HF_TOKEN to your token"
    if isinstance(error, RepositoryNotFoundError):
        return f"{here}, and the hub has no such model, or it is private: check the name, or set HF_TOKEN"
    return (
        f"{here}, and the download from the hub failed: check the connection and try again (complete files are kept), "
        "or pass a folder"
    )
