"""The engine behind threads and event loops: waiting, streaming, cancelling, stopping."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch

from sharpen.llm.engine import Engine, EngineError, SamplingParams, Token
from tests.errors import raises

from .tiny import Letters, build, greedy_of, shared

PROMPT = [5, 6, 7, 8]
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
ENDLESS = SamplingParams(max_new_tokens=4_000, ignore_eos=True, seed=1)


@pytest.fixture
def engine() -> Iterator[Engine]:
    # A long window, so that a request runs until a test ends it.
    with Engine(build(max_position_embeddings=8_192), Letters(), max_batch=8, max_tokens=16_384) as engine:
        yield engine


def test_many_threads_get_their_own_answers(engine: Engine) -> None:
    answers: dict[int, list[int]] = {}

    def ask(first: int) -> None:
        answers[first] = engine.submit([first, 9, 9], GREEDY).result(60).samples[0].token_ids

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(3, 15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model = engine._weights.model
    assert answers == {first: greedy_of(model, [first, 9, 9], 12) for first in range(3, 15)}


async def test_an_event_loop_gets_many_answers_at_once(engine: Engine) -> None:
    results = await asyncio.gather(*(engine.generate([first, 9, 9], GREEDY) for first in range(3, 9)))
    expected = [greedy_of(engine._weights.model, [first, 9, 9], 12) for first in range(3, 9)]
    assert [each.samples[0].token_ids for each in results] == expected


async def test_a_stream_brings_each_token_once_and_the_whole_text(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=15, n=2, seed=3, logprobs=1)
    whole = await engine.generate(PROMPT, params)
    tokens: list[Token] = [token async for token in engine.stream(PROMPT, params)]
    for sample in whole.samples:
        own = [token for token in tokens if token.sample == sample.index]
        assert [token.id for token in own] == sample.token_ids
        assert [token.logprob for token in own] == pytest.approx(sample.logprobs, abs=1e-5)
        assert [token.top[0][0] for token in own] == [top[0][0] for top in sample.top_logprobs]
        assert "".join(token.text for token in own) == sample.text
        assert [token.finish_reason for token in own][-1] == sample.finish_reason
        assert {token.finish_reason for token in own[:-1]} <= {None}


@pytest.mark.parametrize("is_started", [False, True])
def test_a_stream_that_begins_late_misses_nothing(is_started: bool) -> None:
    engine = Engine(shared(), Letters(), max_batch=4, max_tokens=512)
    request = engine.submit(PROMPT, SamplingParams(max_new_tokens=15, seed=3, ignore_eos=True))
    for _ in range(5):
        engine.step()
    if is_started:
        engine.start()
    tokens = list(request.stream())
    sample = request.result().samples[0]
    assert [token.id for token in tokens] == sample.token_ids
    assert "".join(token.text for token in tokens) == sample.text
    assert [token.id for token in request.stream()] == sample.token_ids
    engine.stop()


async def test_leaving_a_stream_cancels_the_request(engine: Engine) -> None:
    stream = engine.stream(PROMPT, ENDLESS)
    assert (await anext(stream)).id is not None
    await stream.aclose()  # type: ignore[attr-defined]
    await asyncio.wait_for(engine.generate(PROMPT, GREEDY), 60)
    assert engine.num_running == 0


async def test_a_cancelled_task_cancels_its_request(engine: Engine) -> None:
    task = asyncio.create_task(engine.generate(PROMPT, ENDLESS))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(engine.generate(PROMPT, GREEDY), 60)
    assert engine.num_running == 0


def test_a_cancelled_request_keeps_what_it_has(engine: Engine) -> None:
    request = engine.submit(PROMPT, ENDLESS)
    tokens = request.stream()
    first = next(tokens)
    request.cancel()
    rest = list(tokens)
    sample = request.result(60).samples[0]
    assert sample.finish_reason == "cancelled"
    assert [each.id for each in (first, *rest) if each.id is not None] == sample.token_ids
    assert rest[-1].finish_reason == "cancelled"


def test_weights_change_while_the_thread_samples(engine: Engine) -> None:
    request = engine.submit(PROMPT, SamplingParams(max_new_tokens=60, ignore_eos=True, seed=1))
    tokens = request.stream()
    next(tokens)
    with engine.paused(), torch.no_grad():
        model = engine._weights.model
        model.model.norm.weight.mul_(0.5)
        engine.update_weights(1)
    sample = request.result(60).samples[0]
    assert sample.versions[0] == 0
    assert sample.versions[-1] == 1
    assert sample.versions == sorted(sample.versions)


def test_stopping_ends_what_runs_and_what_waits() -> None:
    engine = Engine(shared(), max_batch=2, max_tokens=512).start()
    requests = [engine.submit(PROMPT, SamplingParams(ignore_eos=True)) for _ in range(8)]
    engine.stop()
    assert {sample.finish_reason for each in requests for sample in each.result(0).samples} <= {"cancelled", "length"}
    assert requests[-1].result(0).samples[0].finish_reason == "cancelled"
    assert (engine.num_running, engine.num_waiting, engine.num_held_tokens) == (0, 0, 0)
    assert engine.submit(PROMPT, GREEDY).result().samples[0].token_ids == greedy_of(shared(), PROMPT, 12)


async def test_awaiting_without_the_thread_is_an_error_and_not_a_wait_for_ever() -> None:
    with raises(EngineError, "engine.start()"):
        await Engine(shared(), max_tokens=256).generate(PROMPT)
