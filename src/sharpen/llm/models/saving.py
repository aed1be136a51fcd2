"""Writing a model folder: weights as safetensors, tokenizer and chat template, or an adapter with the name of its base.

All files are first written to a temporary folder inside the target. They are then moved one by one, the config last, so
that what `find_model` recognises as a model is complete, even after a crash. Other files in the folder stay.
"""

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ...errors import text_of
from ...files import is_alive, sync
from ..errors import ModelError
from .loading import model_lock, place_of
from .source import ADAPTER_CONFIG, MODEL_CONFIG, ModelSource

# The files that make a folder a model: moved last, and removed first.
_MARKS = (MODEL_CONFIG, ADAPTER_CONFIG)
# Files of a model that was saved here before: if they stayed, they would mix with the new ones.
_OWN_FILES = (
    *_MARKS,
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "chat_template.jinja",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)

_TEMPORARY_NAME = re.compile(r"\..+\.(\d+)-\d+\.tmpdir")
_temporary_numbers = itertools.count()


def save_model(model: Any, tokenizer: Any, path: str | os.PathLike[str], *, source: ModelSource | None = None) -> Path:
    """Write a model into a folder, from which `load_model` loads the same model again.

    `source` is where the model was loaded from; a saved adapter names it as its base.
    """
    folder = Path(path).expanduser().absolute()
    is_adapter = hasattr(model, "peft_config")
    base = _base_of(model, source) if is_adapter else None
    check_save_folder(folder, source=source, is_adapter=is_adapter)
    with _writing(folder) as temporary:
        if base is not None:
            _write_adapter(model, temporary, base)
        else:
            model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for file in temporary.iterdir():
            sync(file)
        _move(temporary, folder)
    return folder


def check_save_folder(path: str | os.PathLike[str], *, source: ModelSource | None, is_adapter: bool) -> None:
    """Raise a ModelError if a model cannot be saved there. An adapter must not overwrite its base."""
    folder = Path(path).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"the model cannot be saved in {str(folder)!r}: a file has that name")
    if not is_adapter or source is None:
        return
    base = source.base or source
    if base.kind != "hub" and folder.resolve() == Path(place_of(base)).resolve():
        raise ModelError(
            f"the adapter cannot be saved in {str(folder)!r}, which holds its base: the base would be lost. "
            "Choose another folder"
        )


# -- adapters ----------------------------------------------------------------------------------------


def _base_of(model: Any, source: ModelSource | None) -> str:
    """Return the base that an adapter is saved with: an absolute folder, or a name on the hub."""
    recorded = model.peft_config[_adapter_name(model)].base_model_name_or_path
    if not recorded:
        raise ModelError(
            "the adapter cannot be saved: the model that it was trained on exists only in memory, so it could not be "
            "loaded again. Save that model first (merge_adapter writes one), and train from its folder"
        )
    if source is not None:
        return place_of(source)
    folder = Path(recorded).expanduser()
    return str(folder.resolve()) if folder.is_dir() else str(recorded)


def _adapter_name(model: Any) -> str:
    """Return the name of the trained adapter. Others, such as a frozen reference, belong to the trainer."""
    if "default" in model.peft_config:
        return "default"
    active = model.active_adapter
    return active if isinstance(active, str) else str(active[0])


def _write_adapter(model: Any, folder: Path, base: str) -> None:
    name = _adapter_name(model)
    # With "auto" PEFT would ask the hub whether the vocabulary has grown; here it never grows.
    model.save_pretrained(str(folder), selected_adapters=[name], save_embedding_layers=False)
    if name != "default":
        for file in (folder / name).iterdir():
            file.replace(folder / file.name)
        (folder / name).rmdir()
    (folder / "README.md").unlink(missing_ok=True)  # An empty model card.
    path = folder / ADAPTER_CONFIG
    config = {**json.loads(path.read_text(encoding="utf-8")), "base_model_name_or_path": base}
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()  # PEFT keeps a set, whose order differs from run to run.
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


# -- files -------------------------------------------------------------------------------------------


@contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder to write to, and remove it; after an error also remove a folder created for it."""
    from safetensors import SafetensorError

    is_new = not folder.exists()
    try:
        with temporary_folder(folder, "model") as temporary, model_lock():
            yield temporary
    except (OSError, SafetensorError) as error:
        reason = " ".join(text_of(error).split())
        raise ModelError(f"the model cannot be saved in {str(folder)!r}: {reason}") from error
    finally:
        if is_new and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _move(temporary: Path, folder: Path) -> None:
    new = sorted((file.name for file in temporary.iterdir()), key=lambda name: (name in _MARKS, name))
    old = [file for file in folder.iterdir() if file.is_file() and any(fnmatch(file.name, own) for own in _OWN_FILES)]
    for file in sorted(old, key=lambda file: file.name not in _MARKS):
        if file.name in _MARKS or file.name not in new:
            file.unlink()
    for name in new:
        os.replace(temporary / name, folder / name)
    sync(folder)


@contextmanager
def temporary_folder(parent: Path, label: str) -> Iterator[Path]:
    """Create a folder in `parent` and remove it after the block, unless it was moved away.

    What killed processes left behind is removed too.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(parent)
    folder = parent / f".{label}.{os.getpid()}-{next(_temporary_numbers)}.tmpdir"
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(parent: Path) -> None:
    for path in parent.glob(".*.tmpdir"):
        match = _TEMPORARY_NAME.fullmatch(path.name)
        if match and not is_alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)
