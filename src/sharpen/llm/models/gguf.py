"""GGUF files, converted once into model folders: float32 weights, tokenizer, chat template, generation config.

A conversion has its place in the cache folder under the file's name and the hash of all its bytes, so another file of
the same name is another model. It appears there whole, by one rename: of two processes at once, the first one wins.
"""

import functools
import hashlib
import logging
import os
import struct
from importlib import import_module
from pathlib import Path
from typing import Any

from ...checks import check_installed
from ...errors import text_of
from ..errors import ModelError
from .source import MODEL_CONFIG
from .temporary_folder import temporary_folder
from .turn import own_turn

CACHE_VARIABLE = "SHARPEN_CACHE"

# In the name of each conversion, so that a change of how files are converted does not find the old ones.
_VERSION = 1
# How a file says that its tokenizer splits numbers into digits, and the rest as GPT-2 does.
_DIGIT_BY_DIGIT = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
_AS_GPT2 = {"default", "gpt-2", None}

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where conversions are kept: `SHARPEN_CACHE`, else `sharpen` in the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "sharpen"


def converted(path: Path) -> Path:
    """The model folder made of a GGUF file; made now if it is not there yet."""
    path = path.expanduser().resolve()
    folder = cache_folder() / "models" / f"{path.stem}-{_fingerprint(path)}"
    if (folder / MODEL_CONFIG).is_file():
        return folder
    check_installed("torch", "transformers", "gguf", extra="llm", feature="reading a GGUF file")
    with own_turn():
        if not (folder / MODEL_CONFIG).is_file():  # Another thread may have made it meanwhile.
            _make(folder, path)
    return folder


def _make(folder: Path, path: Path) -> None:
    log.info("converting %s into %s, once", path, folder)
    try:
        with temporary_folder(folder.parent, folder.name) as temporary:
            _convert(path, temporary)
            _take_place(temporary, folder)
    except OSError as error:
        raise ModelError(f"the GGUF file {str(path)!r} cannot be converted into {str(folder)!r}: {error}") from error


def _fingerprint(path: Path) -> str:
    try:
        stat = path.stat()
        return _hash(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise ModelError(f"the GGUF file {str(path)!r} cannot be read: {error}") from error


@functools.cache
def _hash(path: Path, size_bytes: int, changed_ns: int) -> str:
    """The hash of a file's bytes; taken once a process while the file stays as it is."""
    with open(path, "rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}-{_VERSION}"


def _take_place(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not (folder / MODEL_CONFIG).is_file():  # Else another process was first.
            raise


# -- conversion --------------------------------------------------------------------------------------


def _convert(path: Path, folder: Path) -> None:
    from .saving import save_model

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
    # transformers saves nothing that it takes for quantized, though the weights are plain numbers by now.
    model.hf_quantizer.remove_quantization_config(model)
    return model


def _read_tokenizer(path: Path) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    way = _way_to_split(path)
    if way in _DIGIT_BY_DIGIT:  # transformers does not know these, and would split as GPT-2 does.
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif way not in _AS_GPT2 and way not in _ways_of_transformers():
        log.warning(
            "the tokenizer of %s splits text in a way (%s) that is not known here: some texts may become other tokens "
            "than the model was trained on",
            path,
            way,
        )
    return tokenizer


def _way_to_split(path: Path) -> str | None:
    """How the tokenizer splits text into words, as far as the file says; tokenizers of other kinds do not split."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    kind, way = (fields.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    return str(way.contents()) if way is not None and kind is not None and kind.contents() == "gpt2" else None


def _ways_of_transformers() -> set[str]:
    module = import_module("transformers.integrations.gguf.gguf_tokenizer_mapping")
    return set(getattr(module, "GGUF_PRE_TOKENIZER_SPLITS", {}))
