"""What the name of a model refers to: a name on the hub, a folder, the folder of an adapter, or a GGUF file.

An existing folder takes precedence over the hub. Nothing is loaded or downloaded here.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import describe
from ...files import read_json
from ..errors import ModelError

Kind = Literal["hub", "folder", "adapter", "gguf"]

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL_CONFIG = "config.json"

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from. `path` is absolute, and None for the hub; only an adapter has a `base`."""

    name: str
    kind: Kind
    path: Path | None = None
    base: "ModelSource | None" = None


def find_model(name: str | os.PathLike[str]) -> ModelSource:
    """Return what a name refers to, or raise a ModelError that says what is missing."""
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(name, str) or not name.strip():
        raise ModelError(f"the name of the model is {name!r}: pass a folder, a .gguf file or a name on the hub")
    path = os.path.expanduser(name)  # These never raise, whatever the name holds.
    if os.path.isdir(path):
        return _folder(name, Path(path).resolve())
    if os.path.isfile(path):
        return _file(name, Path(path).resolve())
    if _is_path(name):
        raise ModelError(f"no model at {name!r}: there is no such file or folder (looked in {str(Path.cwd())!r})")
    if not _HUB_NAME.fullmatch(name):
        raise ModelError(f"{name!r} is neither a folder nor a name on the hub, such as 'Qwen/Qwen3-0.6B'")
    return ModelSource(name, "hub")


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith(".gguf") or name.count("/") > 1 or "\\" in name


def _file(name: str, path: Path) -> ModelSource:
    if path.suffix != ".gguf":
        raise ModelError(f"{name!r} is a file, but not a .gguf file: pass the folder of the model instead")
    return ModelSource(name, "gguf", path)


def _folder(name: str, path: Path) -> ModelSource:
    if (path / ADAPTER_CONFIG).is_file():
        return _adapter(name, path)
    if not (path / MODEL_CONFIG).is_file():
        raise ModelError(
            f"the folder {name!r} does not contain a model: it has neither {MODEL_CONFIG} nor {ADAPTER_CONFIG}"
            f"{_models_inside(path)}"
        )
    if not any(path.glob("*.safetensors")):
        raise ModelError(
            f"the folder {name!r} has no weights in .safetensors files; other formats can contain code and are not read"
        )
    return ModelSource(name, "folder", path)


def _models_inside(path: Path) -> str:
    """Return a hint for the message if there are models one folder below."""
    found = sorted(each.parent.name for mark in (MODEL_CONFIG, ADAPTER_CONFIG) for each in path.glob(f"*/{mark}"))
    return f"; its subfolders contain models: {', '.join(found[:8])}" if found else ""


# -- adapters ----------------------------------------------------------------------------------------


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return the settings of the adapter in a folder."""
    path = folder / ADAPTER_CONFIG
    try:
        return read_json(path, kind=dict, error=ModelError)
    except OSError as error:
        raise ModelError(f"{str(path)!r} cannot be read: {describe(error)}") from error


def _adapter(name: str, path: Path) -> ModelSource:
    if not (path / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"the adapter in {name!r} has no weights: {ADAPTER_WEIGHTS} is missing")
    base_name = read_adapter_config(path).get("base_model_name_or_path")
    if not isinstance(base_name, str) or not base_name:
        raise ModelError(
            f"the adapter in {name!r} does not name its base model: set base_model_name_or_path in its {ADAPTER_CONFIG}"
        )
    base = _base(name, path, base_name)
    if base.kind == "adapter":
        raise ModelError(
            f"the base of the adapter in {name!r} is {base_name!r}, which is an adapter itself: "
            "merge that one into its base first (merge_adapter), and set the merged folder as the base"
        )
    return ModelSource(name, "adapter", path, base)


def _base(name: str, path: Path, base_name: str) -> ModelSource:
    """Return the base of an adapter: a path as it is given, or relative to the adapter, or a name on the hub."""
    beside = path / base_name
    if not os.path.exists(os.path.expanduser(base_name)) and os.path.exists(beside):
        return find_model(beside.resolve())
    try:
        return find_model(base_name)
    except ModelError as error:
        raise ModelError(
            f"the base of the adapter in {name!r} cannot be used: {error}. If it has moved, set "
            f"base_model_name_or_path in {str(path / ADAPTER_CONFIG)!r} to its new path{_conversion_hint(base_name)}"
        ) from error


def _conversion_hint(base_name: str) -> str:
    from .gguf import cache_folder

    if not Path(base_name).is_relative_to(cache_folder()):
        return ""
    return ". It was converted from a GGUF file: load that file once to convert it to the same folder again"
