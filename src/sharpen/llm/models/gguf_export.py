"""Writing a model as a GGUF file, for programs such as llama.cpp, and for `load_model`.

For models of the Llama, Mistral, Qwen2 and Qwen3 families whose tokenizer is a byte-level BPE. The file appears
complete or not at all.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from ...checks import check_choice, check_installed
from ...errors import ConfigError, describe
from ...files import replacing
from ..errors import ModelError
from .gguf import known_splits
from .loading import load_model

Number = Literal["f16", "f32", "bf16"]
"""The type of the matrices. Vectors (norms, biases) are always f32: they are small, and precision matters there."""

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GREATEST_F16 = 65504.0
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # kinds of tokens


def export_gguf(model_folder: str | os.PathLike[str], path: str | os.PathLike[str], dtype: Number = "f16") -> Path:
    """Write the model of a folder, with its tokenizer and chat template, into a `.gguf` file.

    An adapter is merged into its base. A model that such a file cannot hold raises a ModelError and leaves no file.
    """
    target = Path(path).expanduser().absolute()
    _check(target, dtype)
    loaded = load_model(model_folder, device="cpu", dtype="stored", merge=True)
    model, name = loaded.model, loaded.source.name
    architecture = _architecture(model.config, name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            _write(temporary, architecture, model, loaded.tokenizer, name, dtype)
    except OSError as error:
        raise ModelError(f"the model cannot be written to {str(target)!r}: {describe(error)}") from error
    return target


def _check(target: Path, dtype: str) -> None:
    check_installed("gguf", extra="llm", feature="writing a GGUF file")
    check_choice("dtype", dtype, get_args(Number))
    if target.suffix != ".gguf":
        raise ConfigError(f"the file is {str(target)!r}, but the name of a GGUF file must end in .gguf")


def _architecture(config: Any, name: str) -> str:
    """Return the name of the model's family in the file, if the file can describe the whole model."""
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.model_type not in _ARCHITECTURES:
        problem = f"its type is {config.model_type!r}, supported are {', '.join(_ARCHITECTURES)}"
    elif rope != "default":
        problem = f"its rotary embedding has type {rope!r}, and only the default one is supported"
    elif set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        problem = "it has layers with sliding-window attention"
    elif config.model_type == "mistral" and getattr(config, "sliding_window", None) is not None:
        problem = "it has sliding-window attention"
    else:
        return _ARCHITECTURES[config.model_type]
    raise ModelError(f"the model {name!r} cannot be written as a GGUF file: {problem}")


# -- the file ----------------------------------------------------------------------------------------


def _write(path: Path, architecture: str, model: Any, tokenizer: Any, name: str, dtype: Number) -> None:
    from gguf import GGUFWriter, LlamaFileType

    kinds = {"f16": LlamaFileType.MOSTLY_F16, "f32": LlamaFileType.ALL_F32, "bf16": LlamaFileType.MOSTLY_BF16}
    writer = GGUFWriter(path, architecture)
    try:
        writer.add_name(Path(name).name)
        writer.add_file_type(kinds[dtype])
        _add_settings(writer, model.config)
        _add_vocabulary(writer, tokenizer, size=model.get_input_embeddings().weight.shape[0], name=name)
        for tensor_name, array in _tensors(model, architecture):
            _add_tensor(writer, tensor_name, array, dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_settings(writer: Any, config: Any) -> None:
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _add_tensor(writer: Any, name: str, array: Any, dtype: Number) -> None:
    import numpy as np
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if dtype == "f32" or array.ndim == 1:
        writer.add_tensor(name, array)
    elif dtype == "f16":
        if float(np.abs(array).max()) > _GREATEST_F16:
            raise ModelError(f"the weight {name!r} has numbers above {_GREATEST_F16:.0f}, too large for f16: use bf16")
        writer.add_tensor(name, array.astype(np.float16))
    else:
        kind = GGMLQuantizationType.BF16
        writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)


# -- tokenizer -------------------------------------------------------------------------------------


def _add_vocabulary(writer: Any, tokenizer: Any, *, size: int, name: str) -> None:
    """Write a byte-level BPE tokenizer, padded to as many tokens as the model has."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str()) if hasattr(tokenizer, "backend_tokenizer") else {}
    _check_tokenizer(backend, name)
    tokens, kinds = _tokens(tokenizer, backend, size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer_name(backend["pre_tokenizer"], name))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = backend["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    for add, token_id in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if token_id is not None:
            add(token_id)
    writer.add_add_bos_token(
        tokenizer.bos_token_id is not None and tokenizer("a").input_ids[0] == tokenizer.bos_token_id
    )
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def pre_tokenizer_name(pre_tokenizer: Any, name: str) -> str:
    """Return the name in GGUF files of a pre-tokenizer, which splits text into words."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {}])
    match [step.get("type") for step in steps]:
        case ["ByteLevel"]:
            return "gpt-2"
        case ["Digits", "ByteLevel"] if steps[0]["individual_digits"]:
            return "smollm"
        case ["Split", "ByteLevel"]:
            pattern = steps[0]["pattern"].get("Regex")
            for known_name, known in known_splits().items():
                if known == pattern:
                    return known_name
    raise ModelError(
        f"the model {name!r} cannot be written as a GGUF file: its pre-tokenizer has no known name in such files: "
        f"{json.dumps(pre_tokenizer)[:200]}"
    )


def _check_tokenizer(backend: Any, name: str) -> None:
    model, normalizer = backend.get("model", {}), backend.get("normalizer")
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        problem = "is not a byte-level BPE"
    elif normalizer is not None and normalizer["type"] != "NFC":
        problem = f"normalizes text first ({normalizer['type']})"
    else:
        return
    raise ModelError(f"the model {name!r} cannot be written as a GGUF file: its tokenizer {problem}")


def _tokens(tokenizer: Any, backend: Any, size: int) -> tuple[list[str], list[int]]:
    vocabulary = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    tokens = [vocabulary.get(token_id, f"[PAD{token_id}]") for token_id in range(size)]
    kinds = [_NORMAL if token_id in vocabulary else _UNUSED for token_id in range(size)]
    for added in backend["added_tokens"]:
        if added["id"] < size:
            kinds[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED
    return tokens, kinds


# -- weights -----------------------------------------------------------------------------------------


def _tensors(model: Any, architecture: str) -> Iterator[tuple[str, Any]]:
    """Yield names as in the file, and float32 arrays. A tied output layer is left out: readers use the embedding."""
    is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    for name, weight in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module == "lm_head" and is_tied:
            continue
        array = weight.detach().float().numpy()
        if architecture == "llama":
            array = _in_pairs(module, array, model.config)
        yield f"{_renamed(module)}.{kind}", array


def _renamed(module: str) -> str:
    if module in _OUTER:
        return _OUTER[module]
    parts = module.split(".", 3)
    if parts[:2] != ["model", "layers"] or parts[3] not in _MODULES:
        raise ModelError(f"the model has a part {module!r}, which a GGUF file cannot hold")
    return f"blk.{parts[2]}.{_MODULES[parts[3]]}"


def _in_pairs(module: str, array: Any, config: Any) -> Any:
    """Return the rows of queries and keys in the order of Llama files, which rotate neighbours instead of halves."""
    all_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    heads = all_heads.get(module.rpartition(".")[2])
    if heads is None:
        return array
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
