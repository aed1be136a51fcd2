"""The models that are in the base folder."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..models.source import ADAPTER_CONFIG, MODEL_CONFIG

_DEEPEST = 4
_MOST_FOLDERS = 5_000


def find_models(base: Path, *, limit: int) -> list[dict[str, Any]]:
    """The folders that hold a model or an adapter, the newest first. Only the upper floors of the tree are searched."""
    found = [(kind, folder, folder.stat().st_mtime) for folder in _folders(base) if (kind := _kind(folder))]
    found.sort(key=lambda each: -each[2])
    return [{"path": str(folder), "kind": kind, "changed": changed} for kind, folder, changed in found[:limit]]


def _folders(base: Path) -> Iterator[Path]:
    level, seen = [base], 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for folder in level:
            seen += 1
            if seen > _MOST_FOLDERS:
                return
            inside = _inside(folder)
            yield from inside
            below += inside
        level = below


def _inside(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    except PermissionError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith((".", "__"))]


def _kind(folder: Path) -> str | None:
    if (folder / ADAPTER_CONFIG).is_file():
        return "adapter"
    is_model = (folder / MODEL_CONFIG).is_file() and any(folder.glob("*.safetensors"))
    return "model" if is_model else None
