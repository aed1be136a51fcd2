"""Which models a call may name: those in the base folder, and what is on the hub only where that is allowed."""

from pathlib import Path

from ..errors import ModelError
from ..models.hub import is_downloaded
from ..models.source import ModelSource, find_model
from .errors import ParameterError
from .workspace import Workspace


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
