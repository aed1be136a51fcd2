"""Loading a model and its tokenizer by name.

Weights are read from safetensors only, since other formats can carry code; code of a model runs only where the caller
trusts it. A model with weights missing is refused: they would be random.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...checks import check_choice, needs_extra
from ...errors import text_of
from ..errors import ModelError
from .gguf import converted
from .hub import hub_folder, turn_telemetry_off
from .precision import PRECISIONS, Precision, choose_device, choose_precision, torch_dtype
from .source import ModelSource, find_model
from .turn import own_turn

# Tokens that vocabularies hold for padding, where the tokenizer does not name its own.
_PADDING = ("<|pad|>", "<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|endoftext|>")

# Files that hold a vocabulary.
_VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")


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
    """Load a model by the name of a folder, of an adapter's folder, of a .gguf file, or of a model on the hub.

    An adapter is applied to its base: with `is_trainable` its weights, in float32, are all that can be trained; with
    `merge` it becomes part of the base, and all of it can be. `dtype` is the type of the weights where it is not that
    of the precision; `stored` keeps the one of the files.
    """
    check_packages()
    turn_telemetry_off()
    device = choose_device(device)
    chosen = choose_precision(precision, device)
    options = _Options(_weights(dtype or chosen), allow_download, trust_remote_code, attn_implementation)
    source = _with_hub_adapter(find_model(name), options)
    with own_turn():
        tokenizer = _tokenizer(source, options)
        model = _model(source, options, is_trainable=is_trainable, merge=merge)
    _check_vocabulary(source, model, tokenizer)
    _set_padding(source, model, tokenizer)
    return LoadedModel(model.to(device).eval(), tokenizer, source, device, chosen)


def _weights(dtype: Precision | Literal["stored"]) -> Any:
    check_choice("dtype", dtype, ("stored", *PRECISIONS))
    return "auto" if dtype == "stored" else torch_dtype(dtype)


def check_packages() -> None:
    """The packages that run models are there."""
    for package in ("torch", "transformers", "peft"):
        with needs_extra(package, extra="llm", feature="running a language model"):
            __import__(package)


# -- places ------------------------------------------------------------------------------------------


def place_of(source: ModelSource) -> str:
    """The folder of the whole model, or its name on the hub. A GGUF file is converted first."""
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
    """A name on the hub may be that of an adapter; its files are then in a folder of the hub's cache."""
    if source.kind != "hub":
        return source
    folder = _folder_of(source, options)
    try:
        found = find_model(folder)
    except ModelError as error:
        raise ModelError(f"the model {source.name!r} was found, but not all of it: {error}") from error
    return source if found.kind != "adapter" else ModelSource(source.name, "adapter", found.path, found.base)


# -- models ------------------------------------------------------------------------------------------


def _model(source: ModelSource, options: _Options, *, is_trainable: bool, merge: bool) -> Any:
    from peft import PeftModel

    base = _base_model(source.base or source, options)
    if source.path is None or source.kind != "adapter":
        return base
    with _in_words(source), warnings.catch_warnings():
        # PEFT only warns that weights are missing, and goes on with random ones.
        warnings.filterwarnings("error", message=".*missing adapter keys", category=UserWarning)
        model = PeftModel.from_pretrained(base, str(source.path), is_trainable=is_trainable and not merge)
    return _merged(model) if merge else model


def _base_model(source: ModelSource, options: _Options) -> Any:
    from transformers import AutoModelForCausalLM

    folder = _folder_of(source, options)
    with _in_words(source):
        loaded: Any = AutoModelForCausalLM.from_pretrained(str(folder), **options.for_weights())
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"the model {source.name!r} lacks {len(missing)} of its weights, such as {missing[0]!r}: it is no language "
            "model, or its folder is incomplete"
        )
    return model


def _merged(model: Any) -> Any:
    plain = model.merge_and_unload()
    plain.requires_grad_(True)  # PEFT froze the base.
    # There is no such model on disk: an adapter trained on it must not claim the base that it no longer is.
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
    with _in_words(source, part="tokenizer of the model"):
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=options.trust_remote_code
        )


def _has_tokenizer(folder: Path) -> bool:
    # Without a vocabulary transformers makes up an empty one.
    return any(any(folder.glob(pattern)) for pattern in _VOCABULARIES)


def _check_vocabulary(source: ModelSource, model: Any, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer of {source.name!r} has {len(tokenizer)} tokens, but the model knows only {rows}: "
            "the tokenizer belongs to another model"
        )


def _set_padding(source: ModelSource, model: Any, tokenizer: Any) -> None:
    if tokenizer.eos_token is None:
        raise ModelError(
            f"the tokenizer of {source.name!r} has no end-of-text token, so no answer could end: "
            "set eos_token in its tokenizer_config.json"
        )
    if tokenizer.pad_token is None:
        known = tokenizer.get_vocab()
        tokenizer.pad_token = next((each for each in _PADDING if each in known), tokenizer.eos_token)
    for config in (model.config, model.generation_config):
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id


# -- errors ------------------------------------------------------------------------------------------


@contextmanager
def _in_words(source: ModelSource, *, part: str = "model") -> Iterator[None]:
    """What the libraries raise, as a ModelError that names the model."""
    from safetensors import SafetensorError

    kinds = (OSError, ValueError, RuntimeError, LookupError, TypeError, ImportError, UserWarning, SafetensorError)
    try:
        yield
    except kinds as error:
        reason = " ".join(text_of(error).split())
        if "trust_remote_code" in reason:
            reason = "it needs code of its own; if you have read that code and trust it, pass trust_remote_code=True"
        raise ModelError(f"the {part} {source.name!r} cannot be loaded: {reason[:400]}") from error
