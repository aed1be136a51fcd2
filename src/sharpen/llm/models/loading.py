"""Loading a model and its tokenizer by name, on a device and in a precision.

Weights are read from safetensors only, because other formats can contain code; code of a model runs only if the caller
trusts it. A model with missing weights is rejected: they would be random.
"""

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast, get_args

from ...checks import check_choice, needs_extra
from ...errors import ConfigError, text_of
from ..errors import ModelError
from .hub import hub_folder, turn_telemetry_off
from .source import ModelSource, find_model

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

# Tokens of vocabularies that are meant for padding, for tokenizers that do not name one.
_PADDING = ("<|pad|>", "<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|endoftext|>")

# Files that hold a vocabulary.
_VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")

_lock = threading.RLock()


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run, on its device and in evaluation mode."""

    model: Any
    tokenizer: Any
    source: ModelSource
    device: str
    precision: Precision


@dataclass(frozen=True)
class _Options:
    weights: Any
    allow_download: bool
    trust_remote_code: bool
    attn_implementation: str | None

    def for_weights(self) -> dict[str, Any]:
        options = {"dtype": self.weights, "trust_remote_code": self.trust_remote_code, "use_safetensors": True}
        chosen = {} if self.attn_implementation is None else {"attn_implementation": self.attn_implementation}
        return {**options, **chosen, "local_files_only": True, "output_loading_info": True}


def load_model(
    name: str | os.PathLike[str],
    *,
    precision: str | None = None,
    device: str | None = None,
    dtype: Precision | Literal["stored"] | None = None,
    is_trainable: bool = False,
    merge: bool = False,
    allow_download: bool = True,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> LoadedModel:
    """Load a model from a folder, an adapter's folder, a .gguf file, or the hub.

    An adapter is applied to its base.

    Args:
        name: A folder, an adapter's folder, a .gguf file, or a name on the hub.
        precision: `fp32`, `bf16` or `fp16`; `auto` and None choose by the device.
        device: Such as `cuda:1`; None for the best one available.
        dtype: The type of the weights if it differs from the precision; `stored` keeps that of the files.
        is_trainable: Make the weights of the adapter, in float32, trainable, and nothing else.
        merge: Merge the adapter into its base; all weights are then trainable.
        allow_download: Whether a model may be downloaded from the hub.
        trust_remote_code: Whether code that comes with the model may run.
        attn_implementation: The attention of transformers to use, if not its default.
    """
    check_packages()
    turn_telemetry_off()
    device = choose_device(device)
    chosen = choose_precision(precision, device)
    options = _Options(_weights(dtype or chosen), allow_download, trust_remote_code, attn_implementation)
    source = _with_hub_adapter(find_model(name), options)
    with model_lock():
        tokenizer = _tokenizer(source, options)
        model = _model(source, options, is_trainable=is_trainable, merge=merge)
    _check_vocabulary(source, model, tokenizer)
    _set_padding(source, model, tokenizer)
    return LoadedModel(model.to(device).eval(), tokenizer, source, device, chosen)


def _weights(dtype: Precision | Literal["stored"]) -> Any:
    check_choice("dtype", dtype, ("stored", *PRECISIONS))
    return "auto" if dtype == "stored" else torch_dtype(dtype)


def check_packages() -> None:
    """Raise an error with the install command if a package that runs models is missing."""
    for package in ("torch", "transformers", "peft"):
        with needs_extra(package, extra="llm", feature="running a language model"):
            __import__(package)


# -- places ------------------------------------------------------------------------------------------


def place_of(source: ModelSource) -> str:
    """Return the folder of the whole model, or its name on the hub. A GGUF file is converted first."""
    from .gguf import converted  # which uses this module

    if source.base is not None:
        return place_of(source.base)
    if source.path is None:
        return source.name
    return str(converted(source.path) if source.kind == "gguf" else source.path)


def _folder_of(source: ModelSource, options: _Options) -> Path:
    place = place_of(source)
    if (source.base or source).kind != "hub":
        return Path(place)
    return hub_folder(place, allow_download=options.allow_download, trust_remote_code=options.trust_remote_code)


def _with_hub_adapter(source: ModelSource, options: _Options) -> ModelSource:
    """Return the source of a name on the hub that may be an adapter, whose files are then in the hub's cache."""
    if source.kind != "hub":
        return source
    folder = _folder_of(source, options)
    try:
        found = find_model(folder)
    except ModelError as error:
        raise ModelError(f"the model {source.name!r} was found, but is incomplete: {error}") from error
    return source if found.kind != "adapter" else ModelSource(source.name, "adapter", found.path, found.base)


# -- models ------------------------------------------------------------------------------------------


def _model(source: ModelSource, options: _Options, *, is_trainable: bool, merge: bool) -> Any:
    from peft import PeftModel

    base = _base_model(source.base or source, options)
    if source.path is None or source.kind != "adapter":
        return base
    with _as_model_error(source), warnings.catch_warnings():
        # PEFT only warns that weights are missing, and continues with random ones.
        warnings.filterwarnings("error", message=".*missing adapter keys", category=UserWarning)
        model = PeftModel.from_pretrained(base, str(source.path), is_trainable=is_trainable and not merge)
    return _merged(model) if merge else model


def _base_model(source: ModelSource, options: _Options) -> Any:
    from transformers import AutoModelForCausalLM

    folder = _folder_of(source, options)
    with _as_model_error(source):
        loaded: Any = AutoModelForCausalLM.from_pretrained(str(folder), **options.for_weights())
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"the model {source.name!r} lacks {len(missing)} of its weights, such as {missing[0]!r}: it is not a "
            "language model, or its folder is incomplete"
        )
    return model


def _merged(model: Any) -> Any:
    plain = model.merge_and_unload()
    plain.requires_grad_(True)  # PEFT froze the base.
    # This model is not on disk: an adapter trained on it must not name the unmerged base as its own.
    plain.name_or_path = plain.config._name_or_path = ""
    return plain


# -- tokenizers --------------------------------------------------------------------------------------


def _tokenizer(source: ModelSource, options: _Options) -> Any:
    from transformers import AutoTokenizer

    beside = source.path if source.kind == "adapter" else None
    folder = beside if beside is not None and _has_tokenizer(beside) else _folder_of(source, options)
    if not _has_tokenizer(folder):
        raise ModelError(
            f"the model {source.name!r} has no tokenizer: {str(folder)!r} lacks files such as tokenizer.json"
        )
    with _as_model_error(source, part="tokenizer of the model"):
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=options.trust_remote_code
        )


def _has_tokenizer(folder: Path) -> bool:
    # Without a vocabulary transformers creates an empty one.
    return any(any(folder.glob(pattern)) for pattern in _VOCABULARIES)


def _check_vocabulary(source: ModelSource, model: Any, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer of {source.name!r} has {len(tokenizer)} tokens, but the model has only {rows}: "
            "the tokenizer belongs to another model"
        )


def _set_padding(source: ModelSource, model: Any, tokenizer: Any) -> None:
    if tokenizer.eos_token is None:
        raise ModelError(
            f"the tokenizer of {source.name!r} has no end-of-text token, so an answer could never end: "
            "set eos_token in its tokenizer_config.json"
        )
    if tokenizer.pad_token is None:
        known = tokenizer.get_vocab()
        tokenizer.pad_token = next((each for each in _PADDING if each in known), tokenizer.eos_token)
    for config in (model.config, model.generation_config):
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id


# -- devices and precisions ------------------------------------------------------------------------


def choose_device(wanted: str | None = None) -> str:
    """Return the wanted device (such as `cuda:1`), or the best one available: `cuda`, `mps` or `cpu`."""
    torch = _torch()
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = [kind for kind, is_here in here.items() if is_here]
    if wanted is None:
        return found[0]
    if not isinstance(wanted, str) or wanted.partition(":")[0] not in found:
        raise ConfigError(f"device is {wanted!r}, but this machine has: {', '.join(found)}")
    return wanted


def choose_precision(wanted: str | None, device: str) -> Precision:
    """Return the wanted precision, if the device supports it; `auto` and None choose by the device."""
    kind = device.partition(":")[0]
    if wanted is None or wanted == "auto":
        return _usual(kind)
    check_choice("precision", wanted, ("auto", *PRECISIONS))
    if wanted == "fp16" and kind == "cpu":
        raise ConfigError("precision is 'fp16', which a CPU cannot train in: use 'fp32' or 'bf16', or a GPU")
    if wanted == "bf16" and kind == "cuda" and not _has_bf16():
        raise ConfigError("precision is 'bf16', which this GPU does not support: use 'fp16' or 'fp32'")
    return cast(Precision, wanted)


def torch_dtype(precision: Precision) -> Any:
    """Return the torch dtype of a precision."""
    torch = _torch()
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _usual(kind: str) -> Precision:
    if kind != "cuda":
        return "fp32"
    return "bf16" if _has_bf16() else "fp16"


def _has_bf16() -> bool:
    # Older GPUs emulate it, which is slower than not using it.
    return bool(_torch().cuda.is_bf16_supported(including_emulation=False))


def _torch() -> Any:
    with needs_extra("torch", extra="llm", feature="running a language model"):
        import torch
    return torch


# -- one at a time ---------------------------------------------------------------------------------


@contextmanager
def model_lock() -> Iterator[None]:
    """Let no other thread load or save a model inside the block, and show no progress bars of transformers.

    While transformers builds a model it changes torch for the whole process. Two threads at once would leave models
    whose weights are not tied, and torch changed for good.
    """
    with _lock:
        logging: Any = import_module("transformers.utils.logging")
        was_on = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if was_on:
                logging.enable_progress_bar()


# -- errors ------------------------------------------------------------------------------------------


@contextmanager
def _as_model_error(source: ModelSource, *, part: str = "model") -> Iterator[None]:
    """Turn what the libraries raise into a ModelError that names the model."""
    from safetensors import SafetensorError

    kinds = (OSError, ValueError, RuntimeError, LookupError, TypeError, ImportError, UserWarning, SafetensorError)
    try:
        yield
    except kinds as error:
        reason = " ".join(text_of(error).split())
        if "trust_remote_code" in reason:
            reason = (
                "it needs its own code to run; if you have read that code and trust it, pass trust_remote_code=True"
            )
        raise ModelError(f"the {part} {source.name!r} cannot be loaded: {reason[:400]}") from error
