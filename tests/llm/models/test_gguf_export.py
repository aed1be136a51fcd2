"""A model written as a GGUF file is that model again."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers
from tokenizers import Regex, pre_tokenizers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from sharpen.errors import ConfigError
from sharpen.llm import ModelError, load_model
from tests.errors import raises
from tests.llm.internals import export_gguf, pre_tokenizer_name, save_model

from ..tiny_models import tiny_tokenizer, write_tiny_model
from .conftest import logits, with_lora

TEXT = "Natalia sold  48 clips. 答案是 #### 72<|im_end|>\n"


def write_model(folder: Path, family: str, **options: Any) -> Path:
    """A tiny model with an output layer of its own, biases where the family has them, and more rows than tokens."""
    tokenizer = tiny_tokenizer()
    if family.startswith("Qwen"):
        tokenizer.backend_tokenizer.pre_tokenizer = _as_qwen()
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer) + 8,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=2,
        **{"num_key_value_heads": 2, "tie_word_embeddings": False, **options},
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=parameter.detach().mean().item(), std=0.2)
    return save_model(model, tokenizer, folder)


def _as_qwen() -> Any:
    """How all Qwens split text; transformers takes no other way from their files."""
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@pytest.mark.parametrize(
    ("family", "options"),
    [("Llama", {}), ("Qwen2", {}), ("Qwen3", {"head_dim": 128}), ("Mistral", {"sliding_window": None})],
)
def test_the_file_gives_the_same_logits_and_tokens(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    folder = write_model(tmp_path / "model", family, **options)
    path = export_gguf(folder, tmp_path / "model.gguf", "f32")
    original, again = load_model(folder, device="cpu"), load_model(path, device="cpu")
    torch.testing.assert_close(logits(again.model), logits(original.model))
    assert again.tokenizer(TEXT).input_ids == original.tokenizer(TEXT).input_ids
    assert again.tokenizer.eos_token == original.tokenizer.eos_token
    assert again.tokenizer.chat_template == original.tokenizer.chat_template


@pytest.mark.parametrize(("dtype", "kind"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_matrices_are_rounded_and_vectors_are_not(
    tmp_path: Path, dtype: Literal["f16", "bf16"], kind: torch.dtype
) -> None:
    folder = write_tiny_model(tmp_path / "model", architecture="llama")
    original = load_model(folder, device="cpu").model.state_dict()
    again = load_model(export_gguf(folder, tmp_path / "model.gguf", dtype), device="cpu").model.state_dict()
    assert original.keys() == again.keys()
    for name, weight in original.items():
        assert torch.equal(again[name], weight if weight.dim() == 1 else weight.to(kind).float()), name


def test_an_adapter_is_merged(tmp_path: Path) -> None:
    loaded = load_model(write_tiny_model(tmp_path / "model", architecture="llama"), device="cpu")
    adapted = with_lora(loaded.model)
    adapter = save_model(adapted, loaded.tokenizer, tmp_path / "adapter", source=loaded.source)
    path = export_gguf(adapter, tmp_path / "model.gguf", "f32")
    torch.testing.assert_close(logits(load_model(path, device="cpu").model), logits(adapted), rtol=1e-4, atol=1e-4)


def test_what_a_file_cannot_hold_is_refused_and_leaves_none(tiny_model: Path, tmp_path: Path) -> None:
    with raises(ConfigError, "q4"):
        export_gguf(tiny_model, tmp_path / "model.gguf", "q4")  # type: ignore[arg-type]
    with raises(ConfigError, ".gguf"):
        export_gguf(tiny_model, tmp_path / "model.bin")
    folder = write_model(tmp_path / "model", "Llama")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    with raises(ModelError, "linear"):
        export_gguf(folder, tmp_path / "model.gguf")
    assert not list(tmp_path.glob("**/*gguf*"))


def test_numbers_too_great_for_f16_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    loaded = load_model(write_tiny_model(tmp_path / "tiny", architecture="llama"), device="cpu")
    loaded.model.model.layers[0].mlp.up_proj.weight.data[0, 0] = 1e5
    folder = save_model(loaded.model, loaded.tokenizer, tmp_path / "great")
    with raises(ModelError, "f16"):
        export_gguf(folder, tmp_path / "out" / "model.gguf")
    assert not list((tmp_path / "out").iterdir())


def test_ways_to_split_text_have_names() -> None:
    byte_level = {"type": "ByteLevel"}
    split = {"type": "Split", "pattern": {"Regex": PRETOKENIZE_REGEX}}
    assert pre_tokenizer_name(byte_level, "m") == "gpt-2"
    assert pre_tokenizer_name({"type": "Sequence", "pretokenizers": [split, byte_level]}, "m") == "qwen2"
    digits = {"type": "Digits", "individual_digits": True}
    assert pre_tokenizer_name({"type": "Sequence", "pretokenizers": [digits, byte_level]}, "m") == "smollm"
    with pytest.raises(ModelError):
        pre_tokenizer_name({"type": "Whitespace"}, "m")
