"""Our forward pass gives what the model gives, for every family that it knows."""

import copy
from typing import Any

import pytest
import torch

from sharpen.llm.engine import Engine
from tests.llm.internals import ModelRunner, PagedRunner

from .tiny import VOCAB, build

YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "rope_theta": 500.0,
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("Llama", {"rope_parameters": LLAMA3}),
        ("Llama", {"num_key_value_heads": 4, "head_dim": 12}),
        ("Qwen2", {}),
        ("Qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
        ("Qwen3", {}),
        ("Qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
        ("Mistral", {"sliding_window": None}),
    ],
)
@torch.no_grad()
def test_logits_are_those_of_the_model(family: str, options: dict[str, Any]) -> None:
    model = build(family, **options)
    engine = Engine(model, max_batch=2, max_tokens=256)
    assert isinstance(engine._runner, PagedRunner)
    ids = [(17 * place + 3) % VOCAB for place in range(60)]
    ours = engine._runner.logits(ids)
    torch.testing.assert_close(ours, model(torch.tensor([ids])).logits[0], atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_bfloat16_logits_differ_by_rounding_only() -> None:
    model = build("Qwen3").to(torch.bfloat16)
    engine = Engine(model, max_batch=2, max_tokens=256)
    assert isinstance(engine._runner, PagedRunner)
    ids = list(range(3, 60))
    ours, theirs = engine._runner.logits(ids), model(torch.tensor([ids])).logits[0].float()
    assert (ours - theirs).abs().mean() < 0.03 * theirs.abs().mean()


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "sliding-window"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "'dynamic'"),
        ("Gemma", {}, "its type is 'gemma'"),
    ],
)
def test_what_is_not_known_to_be_the_same_runs_by_its_own_forward_pass(
    family: str, options: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(build(family, **options), max_batch=2, max_tokens=256)
    assert isinstance(engine._runner, ModelRunner)
    assert words in caplog.text


def test_a_model_that_was_altered_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    model = copy.deepcopy(build("Llama"))
    for layer in model.model.layers:
        layer.self_attn.scaling = 0.1
    assert isinstance(Engine(model, max_batch=2, max_tokens=256)._runner, ModelRunner)
    assert [each.levelname for each in caplog.records if "LlamaForCausalLM" in each.getMessage()] == ["WARNING"]
