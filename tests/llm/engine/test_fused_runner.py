"""The steps of a GPU, run here: rounded up, from fixed tensors, through the kernels; as exact as the plain ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from sharpen.llm.engine import Engine, SamplingParams
from tests.llm.internals import FusedRunner, TorchKernels, engine_fused_runner as fused_runner

from .tiny import VOCAB, build, logprobs_of, shared

SETS = ["torch", pytest.param("triton", marks=pytest.mark.triton)]


def engine_with(kernels: str, model: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Engine:
    made: Any = TorchKernels()
    device = None
    if kernels == "triton":
        from tests.llm.internals import TritonKernels

        made = TritonKernels()
        device = "cuda" if torch.cuda.is_available() else None  # Triton's interpreter works on the CPU
    monkeypatch.setattr(fused_runner, "kernels_for", lambda device: made)
    usual: dict[str, Any] = {"max_batch": 8, "max_tokens": 512, "block_size": 4, "device": device}
    engine = Engine(model, static_shapes=True, **{**usual, **options})
    assert isinstance(engine._runner, FusedRunner)
    return engine


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("Llama", {"num_key_value_heads": 4, "head_dim": 12}),
        ("Llama", {"hidden_act": "gelu"}),
        ("Qwen2", {}),
        ("Qwen3", {"num_key_value_heads": 1}),
    ],
)
def test_samples_have_the_models_log_probabilities(
    kernels: str, family: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(family, **options)
    engine = engine_with(kernels, model, monkeypatch, prefill_tokens=11, overlap=True)
    prompts = [[*range(3, 40)], [*range(3, 40)][:21], [4] * 9, [9]]
    results = engine.sample(prompts, SamplingParams(max_new_tokens=9, n=2, seed=2, ignore_eos=True))
    for result in results:
        for sample in result.samples:
            expected = logprobs_of(model, result.prompt_ids, sample.token_ids)
            assert sample.model_logprobs == pytest.approx(expected, abs=1e-4)
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kernels", SETS)
def test_many_programs_may_read_one_text(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_runner, "_SPLIT_TOKENS", 8)
    monkeypatch.setattr(fused_runner, "_programs_of", lambda device: 64)
    engine = engine_with(kernels, shared(), monkeypatch)
    result = engine.sample([[5, 6, 7] * 30], SamplingParams(max_new_tokens=5, n=2, seed=0, temperature=0.5))[0]
    for sample in result.samples:
        expected = logprobs_of(shared(), result.prompt_ids, sample.token_ids)
        assert sample.model_logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kernels", SETS)
def test_tokens_are_those_of_the_plain_steps(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with(kernels, shared(), monkeypatch, overlap=True, max_batch=5)
    plain = Engine(shared(), max_batch=5, max_tokens=512, block_size=4)
    for number, given in enumerate(({}, {"temperature": 0.0}, {"temperature": 1.5}, {"top_p": 0.8, "logprobs": 2})):
        prompts = [[3, 4, 5, number], [7] * 6, [8, 9]]
        params = SamplingParams(max_new_tokens=12, n=3, seed=number, **given)  # type: ignore[arg-type]
        for one, other in zip(engine.sample(prompts, params), plain.sample(prompts, params), strict=True):
            for ours, theirs in zip(one.samples, other.samples, strict=True):
                assert ours.token_ids == theirs.token_ids
                assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def test_joined_weights_are_the_trainers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    parameters = dict(model.named_parameters())
    before = {name: each.detach().clone() for name, each in parameters.items()}
    engine = engine_with("torch", model, monkeypatch)
    for name, each in model.named_parameters():
        assert each is parameters[name]
        assert torch.equal(each, before[name])
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(torch.tensor([[5, 6, 7, 8]])).logits.square().mean().backward()
    with engine.paused():
        optimiser.step()
        engine.update_weights(1)
    result = engine.sample([[5, 6, 7]], SamplingParams(max_new_tokens=8, seed=0, ignore_eos=True))[0].samples[0]
    assert result.model_logprobs == pytest.approx(logprobs_of(model, [5, 6, 7], result.token_ids), abs=1e-4)
    assert not torch.equal(
        model.model.layers[0].self_attn.k_proj.weight, before["model.layers.0.self_attn.k_proj.weight"]
    )


def test_a_model_with_joined_weights_is_saved_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    engine_with("torch", model, monkeypatch)
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model").state_dict()
    save_file(dict(model.named_parameters()), tmp_path / "weights.safetensors")
    weights = load_file(tmp_path / "weights.safetensors")
    for name, each in before.items():
        assert torch.equal(again[name], each)
        assert torch.equal(weights[name], each)


def test_adapters_are_added_to_joined_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LoraConfig(r=4, lora_alpha=16, lora_dropout=0.3, target_modules=["q_proj", "v_proj", "up_proj", "o_proj"])
    model: Any = get_peft_model(build(), config)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(each, std=0.3)
    engine = engine_with("torch", model, monkeypatch)
    for version in (1, 2):
        result = engine.sample([[5, 6, 7]], SamplingParams(max_new_tokens=8, seed=0, ignore_eos=True))[0].samples[0]
        expected = logprobs_of(model.eval(), [5, 6, 7], result.token_ids)
        assert result.model_logprobs == pytest.approx(expected, abs=1e-4)
        with engine.paused(), torch.no_grad():
            for name, each in model.named_parameters():
                if "lora_A" in name:
                    each.mul_(1.5)
            engine.update_weights(version)


def test_weights_that_moved_are_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    engine = engine_with("torch", model, monkeypatch)
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.25
    engine.update_weights(1)
    result = engine.sample([[5, 6, 7]], SamplingParams(max_new_tokens=8, seed=0, ignore_eos=True))[0].samples[0]
    assert result.model_logprobs == pytest.approx(logprobs_of(model, [5, 6, 7], result.token_ids), abs=1e-4)


def test_bfloat16_differs_by_rounding_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("Qwen3").to(torch.bfloat16)
    engine = engine_with("torch", model, monkeypatch)
    assert isinstance(engine._runner, FusedRunner)
    ids = [(5 * place) % VOCAB for place in range(40)]
    with torch.no_grad():
        ours, theirs = engine._runner.logits(ids), model(torch.tensor([ids])).logits[0].float()
    assert (ours - theirs).abs().mean() < 0.03 * theirs.abs().mean()
