"""Models that only their own code knows: slower, and as exact."""

import pytest
import torch
import transformers

from sharpen.llm.engine import Engine, SamplingParams
from tests.llm.internals import ModelRunner

from .tiny import greedy_of, logprobs_of


def gpt2() -> transformers.PreTrainedModel:
    config = transformers.GPT2Config(
        vocab_size=60, n_embd=32, n_layer=2, n_head=2, n_positions=128, initializer_range=0.3, eos_token_id=2
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.GPT2LMHeadModel(config).eval()


def test_an_unknown_model_is_sampled_exactly_with_groups_swaps_and_a_full_cache() -> None:
    model = gpt2()
    engine = Engine(model, max_batch=4, max_tokens=64, block_size=4, prefill_tokens=5)
    assert isinstance(engine._runner, ModelRunner)
    greedy = engine.sample([[5, 6, 7, 8, 9, 10, 11]], SamplingParams(max_new_tokens=8, temperature=0.0))[0]
    assert greedy.samples[0].token_ids == greedy_of(model, greedy.prompt_ids, 8)
    model.train()
    requests = [
        engine.submit([3, 4, 5, 6, 7, 8], SamplingParams(max_new_tokens=20, n=3, seed=1, ignore_eos=True)),
        engine.submit([9, 9], SamplingParams(max_new_tokens=20, n=2, seed=2)),
    ]
    for _ in range(5):
        engine.step()
    engine.update_weights(1)
    results = [each.result() for each in requests]
    assert model.training
    model.eval()
    for result in results:
        for sample in result.samples:
            assert sample.model_logprobs == pytest.approx(
                logprobs_of(model, result.prompt_ids, sample.token_ids), abs=1e-4
            )
    assert (engine.num_held_tokens, engine._runner._caches) == (0, {})
