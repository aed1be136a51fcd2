"""A replay answers from a record, by content and order, and says why it cannot."""

import asyncio
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sharpen import InMemoryLightningStore, Span, record_of_rollout
from sharpen.errors import ConfigError, UnknownIdError
from sharpen.semconv import SHARPEN_LLM_CALL
from tests.errors import raises
from tests.llm_proxy.internals import (
    Call,
    Exchange,
    Reader,
    RecordFile,
    Refusal,
    Replay,
    Shelf,
    Upstream,
    WrittenRecord,
    exchange_attributes,
    key_of,
)

from .asked import HELLO, call_of, exchange_of, question
from .test_record import REQUESTS


async def chunks_of(replay: Upstream, call: Call) -> list[bytes]:
    answer = await replay.send(call)
    return [data async for data in answer]


async def said(replay: Upstream, call: Call) -> str:
    return b"".join(await chunks_of(replay, call)).decode()


async def refusal_of(replay: Upstream, call: Call) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await replay.send(call)
    return caught.value


def recorded(*answers: tuple[Call, str]) -> list[Exchange]:
    return [exchange_of(call, [text.encode()]) for call, text in answers]


# -- the same bytes ----------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    asked=st.lists(st.tuples(REQUESTS, st.lists(st.binary(min_size=1, max_size=30), max_size=5)), max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_a_replay_gives_the_bytes_that_were_recorded(tmp_path: Path, asked: list[Any], order: Any) -> None:
    """Whatever was asked how often: the answers to each request come in order, chunk by chunk."""
    path = tmp_path / "record.jsonl"
    path.unlink(missing_ok=True)
    with RecordFile(path) as record:
        for request, chunks in asked:
            record.append(exchange_of(call_of(request), chunks))
    left = [list(each) for each in asked]

    async def replay_all() -> None:
        replay = Replay(path)
        while left:
            request = left[order.randrange(len(left))][0]
            # The first that is left with this very request: `True` and `1` are equal in Python, not in JSON.
            index = next(i for i, each in enumerate(left) if key_of("chat", each[0]) == key_of("chat", request))
            assert await chunks_of(replay, call_of(request)) == left.pop(index)[1]
        await replay.aclose()

    asyncio.run(replay_all())


async def test_status_and_type_are_as_recorded() -> None:
    replay = Replay([exchange_of(call_of(), [b"{}"], status=429, content_type="application/json")])
    answer = await replay.send(call_of())
    assert (answer.status, list(answer.headers)) == (429, [("content-type", "application/json")])
    await answer.aclose()


async def test_an_answer_that_was_cut_is_cut_again() -> None:
    replay = Replay([exchange_of(call_of(), [b"data: 1\n\n"], is_complete=False)])
    parts = aiter(await replay.send(call_of()))
    assert await anext(parts) == b"data: 1\n\n"
    with pytest.raises(ConnectionResetError):
        await anext(parts)


async def test_a_replay_adds_nothing_to_the_request() -> None:
    call = call_of()
    call.added = frozenset({"logprobs"})
    await Replay([exchange_of(call_of(), [b"ok"])]).send(call)
    assert call.added == frozenset()


# -- order -------------------------------------------------------------------------------------------


async def test_the_same_request_gets_its_answers_in_order() -> None:
    replay = Replay(recorded((call_of(), "first"), (call_of(), "second")))
    assert [await said(replay, call_of()) for _ in range(2)] == ["first", "second"]


async def test_the_order_is_that_of_the_requests_not_of_the_answers() -> None:
    first, second = call_of(), call_of()
    second.start_time = first.start_time + 1
    replay = Replay(recorded((second, "second"), (first, "first")))
    assert [await said(replay, call_of()) for _ in range(2)] == ["first", "second"]


async def test_attempts_that_ask_at_once_share_the_record_without_a_loss() -> None:
    numbers = [str(number) for number in range(200)]
    replay = Replay(recorded(*((call_of(rollout_id=f"ro-{number}"), number) for number in numbers)))
    asked = [said(replay, call_of(rollout_id=f"new-{number}")) for number in numbers]
    assert Counter(await asyncio.gather(*asked)) == Counter(numbers)
    assert (await refusal_of(replay, call_of(rollout_id="new-x"))).code == "record_used_up"


async def test_a_rollout_of_the_record_gets_its_own_answers_in_whatever_order_it_comes() -> None:
    replay = Replay(recorded(*((call_of(rollout_id=f"ro-{number}"), str(number)) for number in range(5))))
    assert [await said(replay, call_of(rollout_id=f"ro-{number}")) for number in (3, 0, 4, 1, 2)] == [*"30412"]


async def test_an_attempt_goes_on_with_the_attempt_that_it_began_with() -> None:
    turns = [question("start"), question("again")]
    record = [(call_of(turn, rollout_id=rollout), f"{rollout} {turn['messages'][0]['content']}")
              for turn in turns for rollout in ("ro-a", "ro-b")]  # fmt: skip
    replay = Replay(recorded(*record))
    first = [await said(replay, call_of(turns[0], rollout_id=rollout)) for rollout in ("new-1", "new-2")]
    second = [await said(replay, call_of(turns[1], rollout_id=rollout)) for rollout in ("new-2", "new-1")]
    assert first == ["ro-a start", "ro-b start"]
    assert second == ["ro-b again", "ro-a again"]


# -- time --------------------------------------------------------------------------------------------


def slow_exchange() -> Exchange:
    return Exchange(
        call_id="call-0",
        time=1.0,
        api="chat",
        key=exchange_of(call_of(), []).key,
        request="{}",
        status=200,
        response="abcd",
        chunk_bytes=[1, 1, 2],
        chunk_seconds=[0.1, 0.2, 0.4],
    )


async def test_a_replay_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(seconds: float) -> None:
        raise AssertionError(f"waited for {seconds}")

    replay = Replay([slow_exchange()])
    monkeypatch.setattr(asyncio, "sleep", wait)
    assert await said(replay, call_of()) == "abcd"


# -- what is not there -------------------------------------------------------------------------------


async def test_a_used_up_request_says_how_often_it_was_recorded() -> None:
    replay = Replay(recorded((call_of(), "1"), (call_of(), "2")))
    for _ in range(2):
        await replay.send(call_of())
    refusal = await refusal_of(replay, call_of())
    assert (refusal.status, refusal.code, refusal.should_retry) == (404, "record_used_up", False)
    assert "recorded 2 times" in refusal.message


async def test_a_request_that_is_not_there_is_compared_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    with RecordFile(path) as record:
        record.append(exchange_of(call_of({"model": "gpt-4o", "messages": [{"role": "user", "content": "no"}]}), []))
        record.append(exchange_of(nearest := call_of(question("what is two plus two?"), rollout_id="ro-7"), []))
    replay = Replay(path)
    refusal = await refusal_of(replay, call_of(question("what is two plus two?", temperature=0.7)))
    assert (refusal.status, refusal.code, refusal.should_retry) == (404, "not_recorded", False)
    values = ("chat", "'gpt-4o'", repr(str(path)), repr(nearest.call_id), "'ro-7'")
    assert all(value in refusal.message for value in values)
    assert "temperature: requested 0.7, recorded nothing" in refusal.message
    await replay.aclose()


DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "another text": (question("hallo"), 'messages[0].content: requested "hallo", recorded "hello"'),
    "another model": (HELLO | {"model": "gpt-5"}, 'model: requested "gpt-5", recorded "gpt-4o"'),
    "one message more": (
        {**HELLO, "messages": [*HELLO["messages"], {"role": "user"}]},
        'messages[1]: requested {"role":"user"}, recorded nothing',
    ),
    "fewer messages": (HELLO | {"messages": []}, 'messages[0]: requested nothing, recorded {"role":"user"'),
    "a number of another kind": (HELLO | {"n": True}, "n: requested true, recorded nothing"),
}


@pytest.mark.parametrize("kind", DIFFERENCES)
async def test_the_difference_names_the_path_and_both_values(kind: str) -> None:
    request, words = DIFFERENCES[kind]
    refusal = await refusal_of(Replay(recorded((call_of(), "ok"))), call_of(request))
    assert words in refusal.message


async def test_another_api_is_named() -> None:
    refusal = await refusal_of(Replay(recorded((call_of(), "ok"))), call_of(api="responses"))
    assert "requested responses, recorded chat" in refusal.message


async def test_long_texts_are_shown_where_they_differ() -> None:
    text = "the same words " * 1000
    replay = Replay(recorded((call_of(question(text + "RIGHT" + text)), "ok")))
    refusal = await refusal_of(replay, call_of(question(text + "WRONG" + text)))
    assert "WRONG" in refusal.message
    assert "RIGHT" in refusal.message
    assert len(refusal.message) < 600


async def test_many_differences_are_counted() -> None:
    replay = Replay(recorded((call_of(HELLO | {f"x{n}": n for n in range(9)}), "ok")))
    refusal = await refusal_of(replay, call_of())
    assert "6 more" in refusal.message


async def test_an_empty_record_says_that_there_is_nothing() -> None:
    assert "no request to compare" in (await refusal_of(Replay([]), call_of())).message


# -- one rollout -------------------------------------------------------------------------------------


def two_rollouts() -> list[Exchange]:
    return recorded((call_of(rollout_id="ro-1"), "of 1"), (call_of(rollout_id="ro-2"), "of 2"))


async def test_one_rollout_is_replayed_by_its_id_for_every_rollout_that_asks() -> None:
    replay = Replay(two_rollouts(), "ro-2")
    for rollout_id in ("new-1", "new-2", None):
        assert await said(replay, call_of(rollout_id=rollout_id)) == "of 2"
        refusal = await refusal_of(replay, call_of(rollout_id=rollout_id))
        assert "recorded once in the record of rollout 'ro-2'" in refusal.message


async def test_a_second_attempt_gets_what_the_second_attempt_got() -> None:
    record = [(call_of(rollout_id="ro-1", attempt_id=each), each) for each in ("at-1", "at-2")]
    replay = Replay(recorded(*record), "ro-1")
    attempts = [call_of(rollout_id="new", attempt_id=each) for each in ("at-8", "at-9")]
    assert [await said(replay, each) for each in attempts] == ["at-1", "at-2"]


def test_a_rollout_that_is_not_in_the_record_is_a_clear_error() -> None:
    with raises(ConfigError, "ro-9", "ro-1", "ro-2"):
        Replay(two_rollouts(), "ro-9")
    with pytest.raises(ConfigError):
        Replay(recorded((call_of(), "ok")), "ro-9")


async def rollout_in(store: InMemoryLightningStore, exchanges: int, *, with_exchange: bool = True) -> str:
    rollout = await store.start_rollout("task")
    place = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    spans = []
    for number in range(exchanges):
        exchange = exchange_of(call_of(question(str(number)), **place), [b"\xff", str(number).encode()])
        attributes = exchange_attributes(exchange) if with_exchange else {}
        spans.append(Span.from_attributes(name=SHARPEN_LLM_CALL, attributes=attributes, **place))
    await store.add_many_spans(spans)
    return rollout.rollout_id


async def test_a_rollout_is_replayed_from_the_store() -> None:
    store = InMemoryLightningStore()
    rollout_id = await rollout_in(store, 250)
    await rollout_in(store, 1)
    replay = await Replay.of_rollout(store, rollout_id)
    for number in (0, 249, 100):
        assert await chunks_of(replay, call_of(question(str(number)))) == [b"\xff", str(number).encode()]


async def test_a_rollout_without_raw_exchanges_cannot_be_replayed() -> None:
    store = InMemoryLightningStore()
    rollout_id = await rollout_in(store, 2, with_exchange=False)
    with raises(ConfigError, 2):
        await record_of_rollout(store, rollout_id)
    with pytest.raises(UnknownIdError):
        await record_of_rollout(store, "ro-unknown")


# -- size --------------------------------------------------------------------------------------------


async def test_a_large_record_stays_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    with RecordFile(path) as record:
        for number in range(300):
            record.append(exchange_of(call_of(question(str(number))), [b"x" * 100_000]))
    tracemalloc.start()
    try:
        replay = Replay(path)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000 < path.stat().st_size
    assert len(await said(replay, call_of(question("299")))) == 100_000
    assert len(WrittenRecord(path)[-2:]) == 2


def test_an_answer_of_many_equal_ones_is_found_without_looking_through_all() -> None:
    count = 20_000
    record = [
        Exchange(
            call_id=str(each), time=float(each), api="chat", key="k", request="{}", status=200, response="{}",
            rollout_id=f"ro-{each // 4}", attempt_id="at-1",
        )
        for each in range(count)
    ]  # fmt: skip
    reader = Reader(Shelf(record))
    taken = [reader.take("k", (f"ro-{each // 4}", "at-1")) for each in reversed(range(count))]
    assert taken == [each // 4 * 4 + 3 - each % 4 for each in reversed(range(count))]
    assert reader.take("k", None) is None
