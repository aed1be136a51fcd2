"""The tokenizer of a model as GGUF files hold it: tokens, merges, kinds, and how text is split before."""

import json
from importlib import import_module
from typing import Any

from ..errors import ModelError

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5


def add_vocabulary(writer: Any, tokenizer: Any, *, size: int, name: str) -> None:
    """Write a byte-level BPE tokenizer, filled up to as many tokens as the model has."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str()) if hasattr(tokenizer, "backend_tokenizer") else {}
    _check_kind(backend, name)
    tokens, kinds = _tokens(tokenizer, backend, size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(way_to_split(backend["pre_tokenizer"], name))
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


def way_to_split(pre_tokenizer: Any, name: str) -> str:
    """The name in GGUF files of how text is split into words."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {}])
    match [step.get("type") for step in steps]:
        case ["ByteLevel"]:
            return "gpt-2"
        case ["Digits", "ByteLevel"] if steps[0]["individual_digits"]:
            return "smollm"
        case ["Split", "ByteLevel"]:
            pattern = steps[0]["pattern"].get("Regex")
            for way, known in _known_splits().items():
                if known == pattern:
                    return way
    raise ModelError(
        f"the tokenizer of {name!r} splits text in a way that has no name in GGUF files, as far as is known here: "
        f"{json.dumps(pre_tokenizer)[:200]}"
    )


def _known_splits() -> dict[str, str]:
    module = import_module("transformers.integrations.gguf.gguf_tokenizer_mapping")
    return dict(getattr(module, "GGUF_PRE_TOKENIZER_SPLITS", {}))


def _check_kind(backend: Any, name: str) -> None:
    model, normalizer = backend.get("model", {}), backend.get("normalizer")
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        problem = "is no byte-level BPE"
    elif normalizer is not None and normalizer["type"] != "NFC":
        problem = f"changes text first ({normalizer['type']})"
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
