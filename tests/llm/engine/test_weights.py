"""Weights that change between steps: each token carries the version it was drawn under."""

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model

from sharpen.errors import InvalidInputError
from sharpen.llm import ModelError
from sharpen.llm.engine import Engine, EngineError, SamplingParams
from tests.errors import raises
from tests.llm.internals import PagedRunner

from .tiny import build, greedy_of, logprobs_of

PROMPT = list(range(5, 30))
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)


def small_engine(model: object, **options: object) -> Engine:
    return Engine(model, **{"max_batch": 4, "max_tokens": 512, "block_size": 4, **options})  # type: ignore[arg-type]


def greedy(engine: Engine) -> list[int]:
    return engine.sample([PROMPT], GREEDY)[0].samples[0].token_ids


def test_weights_changed_in_place_are_seen_at_once() -> None:
    model, other = build(), build(seed=1)
    model.generation_config.eos_token_id = other.generation_config.eos_token_id = None
    engine = small_engine(model)
    before = greedy(engine)
    with engine.paused(), torch.no_grad():
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            mine.copy_(its)
        engine.update_weights(1)
    assert engine.weights_version == 1
    assert before != greedy(engine) == greedy_of(other, PROMPT, 12)


def test_a_state_is_loaded_in_place_and_shared_with_the_model() -> None:
    model, other = build(), build(seed=1)
    other.generation_config.eos_token_id = None
    engine = small_engine(model)
    place = model.model.layers[0].mlp.up_proj.weight.data_ptr()
    engine.update_weights(5, other.state_dict())
    assert greedy(engine) == greedy_of(other, PROMPT, 12)
    assert model.model.layers[0].mlp.up_proj.weight.data_ptr() == place
    torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_a_state_of_another_model_changes_nothing() -> None:
    model = build()
    engine = small_engine(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    name = "model.layers.0.mlp.up_proj.weight"
    with raises(InvalidInputError, "model.what"):
        engine.update_weights(1, {name: torch.zeros_like(before[name]), "model.what": torch.zeros(1)})
    with pytest.raises(InvalidInputError):
        engine.update_weights(1, {"model.norm.weight": torch.zeros(32), name: torch.zeros(3, 3)})
    torch.testing.assert_close(model.state_dict(), before)
    assert engine.weights_version == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_a_sample_that_spans_a_swap_has_the_version_and_the_exact_log_probability_of_each_token(overlap: bool) -> None:
    first, second = build(), build(seed=1)
    running = build()
    engine = small_engine(running, weights_version=3, overlap=overlap)
    request = engine.submit(PROMPT, SamplingParams(max_new_tokens=12, n=2, seed=0, ignore_eos=True))
    for _ in range(4):
        engine.step()
    engine.update_weights(4, second.state_dict())
    for sample in request.result().samples:
        swap = sample.versions.index(4)
        assert 0 < swap < 12
        assert sample.versions == [3] * swap + [4] * (12 - swap)
        old = logprobs_of(first, PROMPT, sample.token_ids)[:swap]
        new = logprobs_of(second, PROMPT, sample.token_ids)[swap:]
        assert sample.model_logprobs == pytest.approx(old + new, abs=1e-4)


def test_weights_that_have_diverged_end_a_request_with_the_reason() -> None:
    model = build()
    engine = small_engine(model)
    request = engine.submit(PROMPT, SamplingParams(max_new_tokens=20, n=3, seed=0, ignore_eos=True))
    engine.step()
    before = model.model.norm.weight.detach().clone()
    engine.update_weights(7, {"model.norm.weight": torch.full_like(before, torch.nan)})
    with raises(EngineError, 7):
        request.result()
    assert (engine.num_running, engine.num_held_tokens) == (0, 0)
    engine.update_weights(8, {"model.norm.weight": before})
    assert len(greedy(engine)) == 12


def test_old_keys_can_be_kept_but_are_never_found_by_others() -> None:
    model, second = build(), build(seed=1)
    engine = small_engine(model)
    request = engine.submit(PROMPT, SamplingParams(max_new_tokens=20, seed=0, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.update_weights(1, second.state_dict(), recompute=False)
    twin = engine.submit(PROMPT, GREEDY)
    assert twin.result().cached_tokens == 0
    sample = request.result().samples[0]
    assert (sample.versions[0], sample.versions[-1]) == (0, 1)
    follow_up = engine.sample([[*PROMPT, *sample.token_ids]], SamplingParams(max_new_tokens=2, seed=0))[0]
    expected = logprobs_of(second, follow_up.prompt_ids, follow_up.samples[0].token_ids)
    assert follow_up.samples[0].model_logprobs == pytest.approx(expected, abs=1e-4)


def test_another_dtype_is_a_copy_that_follows() -> None:
    model = build().to(torch.bfloat16)
    engine = small_engine(model, dtype=torch.float32)
    copy = build().to(torch.bfloat16).float()
    copy.generation_config.eos_token_id = None
    assert greedy(engine) == greedy_of(copy, PROMPT, 12)
    with torch.no_grad():
        model.model.norm.weight.mul_(-1)
        copy.model.norm.weight.mul_(-1)
    engine.update_weights(1)
    assert greedy(engine) == greedy_of(copy, PROMPT, 12)


def lora_model(**options: object) -> torch.nn.Module:
    targets = ["q_proj", "v_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=16, lora_dropout=0.3, target_modules=targets, **options)  # type: ignore[arg-type]
    model = get_peft_model(build("Qwen3"), config)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_a_lora_adapter_is_applied_without_its_dropout_also_after_training_it() -> None:
    model = lora_model()
    engine = small_engine(model)
    assert isinstance(engine._runner, PagedRunner)
    for version in (1, 2):
        model.train()
        result = engine.sample([PROMPT], SamplingParams(max_new_tokens=12, seed=0, n=2))[0]
        model.eval()
        for sample in result.samples:
            expected = logprobs_of(model, PROMPT, sample.token_ids)
            assert sample.model_logprobs == pytest.approx(expected, abs=1e-4)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_A" in name:
                    parameter.mul_(-2)
        engine.update_weights(version)


def test_merged_and_disabled_adapters_count_as_such() -> None:
    model = lora_model().eval()
    engine = small_engine(model)
    applied = engine.sample([PROMPT], SamplingParams(max_new_tokens=12, seed=0))[0].samples[0]
    model.merge_adapter()  # type: ignore[operator]
    engine.update_weights(1)
    merged = engine.sample([PROMPT], SamplingParams(max_new_tokens=12, seed=0))[0].samples[0]
    assert merged.token_ids == applied.token_ids
    assert merged.model_logprobs == pytest.approx(applied.model_logprobs, abs=1e-4)
    model.unmerge_adapter()  # type: ignore[operator]
    with model.disable_adapter():  # type: ignore[operator]
        engine.update_weights(2)
        plain = engine.sample([PROMPT], SamplingParams(max_new_tokens=12, seed=0))[0].samples[0]
        expected = logprobs_of(build("Qwen3"), PROMPT, plain.token_ids)
    assert plain.model_logprobs == pytest.approx(expected, abs=1e-4)


def test_adapters_that_cannot_be_applied_exactly_are_refused_or_left_to_the_model() -> None:
    prefix = get_peft_model(build(), PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    with pytest.raises(ModelError):
        small_engine(prefix)
    dora = lora_model(use_dora=True).eval()
    sample = small_engine(dora).sample([PROMPT], SamplingParams(max_new_tokens=5, seed=0))[0].samples[0]
    expected = logprobs_of(dora, PROMPT, sample.token_ids)
    assert sample.model_logprobs == pytest.approx(expected, abs=1e-4)
