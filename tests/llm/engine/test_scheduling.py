"""Continuous batching under load: every request gets what it would get alone, and nothing leaks."""

import functools
import random
from collections.abc import Sequence

import pytest
from torch import Tensor

from sharpen.llm.engine import Engine, Request, SamplingParams
from tests.llm.internals import Step, StepGraphs, bucket

from .tiny import VOCAB, build, logprobs_of, shared

SYSTEM = list(range(30, 41))


def random_request(chance: random.Random) -> tuple[list[int], SamplingParams]:
    """Short and long, shared and own beginnings, all kinds of settings."""
    beginning = SYSTEM[: chance.randrange(12)] if chance.random() < 0.6 else []
    prompt = [*beginning, *(chance.randrange(3, 8) for _ in range(chance.randrange(1, 12)))]
    params = SamplingParams(
        max_new_tokens=chance.randrange(1, 25),
        temperature=chance.choice([0.0, 0.8, 1.0]),
        top_p=chance.choice([1.0, 0.9]),
        top_k=chance.choice([0, 0, 20]),
        n=chance.choice([1, 1, 2, 5]),
        seed=chance.randrange(1_000),
        logprobs=chance.choice([0, 0, 2]),
    )
    return prompt, params


@functools.cache
def alone(prompt: tuple[int, ...], params: SamplingParams) -> list[list[int]]:
    result = Engine(shared(), max_batch=8, max_tokens=512).sample([prompt], params)[0]
    return [each.token_ids for each in result.samples]


def check(request: Request, *, is_cancelled: bool) -> None:
    result = request.result(0)
    expected = alone(tuple(request.prompt_ids), request.params)
    for sample, tokens in zip(result.samples, expected, strict=True):
        if sample.finish_reason == "cancelled":
            assert is_cancelled
            assert sample.token_ids == tokens[: len(sample.token_ids)]
        else:
            assert sample.token_ids == tokens
        assert len(sample.logprobs) == len(sample.versions) == len(sample.token_ids)


@pytest.mark.parametrize("overlap", [False, True])
def test_random_arrivals_and_cancellations_change_nothing_for_anybody(overlap: bool) -> None:
    run_randomly(seed=0, overlap=overlap, num_requests=12)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_random_arrivals_and_cancellations_change_nothing_for_anybody(seed: int, overlap: bool) -> None:
    run_randomly(seed=seed, overlap=overlap, num_requests=40)


def run_randomly(*, seed: int, overlap: bool, num_requests: int) -> None:
    chance = random.Random(seed)
    # A cache of 14 blocks for at most 6 sequences of up to 12 blocks: they push each other out again and again.
    engine = Engine(
        shared(),
        max_batch=6,
        max_tokens=56,
        block_size=4,
        prefill_tokens=9,
        overlap=overlap,
        static_shapes=overlap and seed % 2 == 0,
    )
    requests: list[Request] = []
    cancelled: set[Request] = set()
    while len(requests) < num_requests or engine.step():
        if len(requests) < num_requests and chance.random() < 0.4:
            prompt, params = random_request(chance)
            requests.append(engine.submit(prompt, params))
        if requests and chance.random() < 0.05:
            gone = chance.choice(requests)
            gone.cancel()
            cancelled.add(gone)
        engine.step()
    for request in requests:
        check(request, is_cancelled=request in cancelled)
    assert (engine.num_running, engine.num_waiting, engine.num_held_tokens) == (0, 0, 0)
    assert engine._stepper.pool.num_available == 14
    assert engine._stepper.scheduler.num_free_slots == 6


def run_three_times(
    graphs: StepGraphs, key: object, step: Step, *, changes: Sequence[Tensor] = (), free_uses: int = 0
) -> Tensor:
    for _ in range(2):
        before = [each.clone() for each in changes]
        step()
        for each, old in zip(changes, before, strict=True):
            each.copy_(old)
    return step()


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_of_fixed_shapes_that_run_several_times_give_the_same(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU, without the recording itself: rounded up, from fixed tensors, and run twice before it counts.
    monkeypatch.setattr(StepGraphs, "run", run_three_times)
    engine = Engine(shared(), max_batch=7, max_tokens=120, block_size=4, static_shapes=True, overlap=overlap)
    chance = random.Random(5)
    requests = [engine.submit(*random_request(chance)) for _ in range(8)]
    while engine.step():
        pass
    for request in requests:
        check(request, is_cancelled=False)


def test_sizes_are_rounded_up_to_few() -> None:
    rounded = {size: bucket(size, most=300) for size in range(1, 301)}
    for size, up in rounded.items():
        assert size <= up <= max(size * 1.25, size + 1)
        assert rounded[up] == up
    assert len(set(rounded.values())) < 32


def test_sequences_that_were_pushed_out_have_exact_log_probabilities() -> None:
    engine = Engine(shared(), max_batch=8, max_tokens=80, block_size=4)
    results = engine.sample([[5, 6, 7], [9, 9]], SamplingParams(max_new_tokens=40, n=4, seed=2, ignore_eos=True))
    for result in results:
        for sample in result.samples:
            expected = logprobs_of(shared(), result.prompt_ids, sample.token_ids)
            assert sample.model_logprobs == pytest.approx(expected, abs=1e-4)


def test_requests_begin_in_the_order_of_their_arrival() -> None:
    engine = Engine(shared(), max_batch=4, max_tokens=36, block_size=4)
    first = engine.submit([3] * 8, SamplingParams(max_new_tokens=20, ignore_eos=True, n=2))
    engine.step()
    large = engine.submit([4] * 24, SamplingParams(max_new_tokens=4, ignore_eos=True))
    small = [engine.submit([5, 6], SamplingParams(max_new_tokens=2)) for _ in range(3)]
    waits = 0
    while large.sequences[0].slot is None:
        waits += 1
        assert all(each.sequences[0].slot is None and each.sequences[0].is_fresh for each in small)
        engine.step()
    assert waits > 1
    assert all(each.result() for each in (first, large, *small))


def test_a_request_with_more_samples_than_slots_is_served_in_turns() -> None:
    engine = Engine(shared(), max_batch=3, max_tokens=64, block_size=4)
    params = SamplingParams(max_new_tokens=6, n=10, seed=5)
    result = engine.sample([[7, 8, 9, 10, 11]], params)[0]
    assert [each.index for each in result.samples] == list(range(10))
    assert [each.token_ids for each in result.samples] == alone((7, 8, 9, 10, 11), params)


def test_a_text_that_fills_the_whole_cache_runs() -> None:
    engine = Engine(shared(), max_batch=4, max_tokens=32, block_size=4)
    others = [engine.submit([3, 4, 5], SamplingParams(max_new_tokens=20, seed=1)) for _ in range(3)]
    engine.step()
    full = engine.submit([6] * 16, SamplingParams(max_new_tokens=16, ignore_eos=True))
    assert len(full.result().samples[0].token_ids) == 16
    assert all(each.result().samples for each in others)


def test_any_vocabulary_and_block_size_work() -> None:
    for vocab, block_size in ((1_500, 5), (640, 1)):
        model = build(vocab=vocab)
        engine = Engine(model, max_batch=4, max_tokens=100, block_size=block_size)
        params = SamplingParams(max_new_tokens=8, n=3, seed=0, top_p=0.9)
        result = engine.sample([[vocab - 1, 5, 6, 7, 8, 9]], params)[0]
        for sample in result.samples:
            expected = logprobs_of(model, result.prompt_ids, sample.token_ids)
            assert sample.model_logprobs == pytest.approx(expected, abs=1e-4)
    assert vocab > VOCAB
