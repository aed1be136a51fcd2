"""When an upstream is asked again, and after how long."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.errors import raises
from tests.http.internals import Unsent
from tests.llm_proxy.internals import Call, Refusal, ask, pause_asked_for, retries


class Answer:
    def __init__(self, status: int, **headers: str) -> None:
        self.status = status
        self.headers: Sequence[tuple[str, str]] = [(key.replace("_", "-"), value) for key, value in headers.items()]
        self.is_closed = False

    async def __aiter__(self) -> Any:
        yield b""

    async def aclose(self) -> None:
        self.is_closed = True


class Scripted:
    """An upstream without a network: what is tested is the order of asking."""

    def __init__(self, name: str, *outcomes: Any) -> None:
        self.name, self.outcomes, self.asked = name, list(outcomes), 0

    async def send(self, call: Call) -> Any:
        self.asked += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Few:
    model_names: Sequence[str] = ()

    def __init__(self, *upstreams: Scripted) -> None:
        self.upstreams, self.reports = upstreams, []

    def choose(self, call: Call) -> Any:
        return self.upstreams

    def report(self, upstream: Any, ok: bool | None, *, retry_after_seconds: float = 0.0) -> None:
        self.reports.append((upstream.name, ok, retry_after_seconds))

    def settled(self, upstream: Any, usage: Any) -> None: ...

    async def aclose(self) -> None: ...


class Clock:
    is_late = False

    def allow(self, seconds: float, words: str) -> None: ...

    def expect(self, seconds: float | None, words: str) -> None: ...


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []

    async def sleep(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(retries.asyncio, "sleep", sleep)
    return made


async def _ask(few: Few, num_retries: int, clock: Clock | None = None) -> Any:
    call = Call("call-1", "chat", None, b"{}", {}, {})
    return (await ask(call, few, clock or Clock(), num_retries=num_retries, first_byte_seconds=None))[1]


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_a_failure_that_may_have_sampled_is_passed_on_unless_it_says_that_it_has_not(
    pauses: list[float], status: int
) -> None:
    upstream = Scripted("a", Answer(status), Answer(200))
    few = Few(upstream)
    assert (await _ask(few, 3)).status == status
    assert upstream.asked == 1
    assert few.reports == [("a", False, 0.0)]
    again = Scripted("b", Answer(status, x_should_retry="true"), Answer(200))
    assert (await _ask(Few(again), 3)).status == 200


@pytest.mark.parametrize(("is_late", "ok"), [(True, False), (False, None)])
async def test_an_upstream_that_did_not_answer_in_time_has_failed_and_one_that_was_left_has_not(
    is_late: bool, ok: bool | None
) -> None:
    clock, few = Clock(), Few(Scripted("a", asyncio.CancelledError()))
    clock.is_late = is_late
    with pytest.raises(asyncio.CancelledError):
        await _ask(few, 1, clock)
    assert few.reports == [("a", ok, 0.0)]


async def test_the_end_of_a_refused_try_is_told() -> None:
    few = Few(Scripted("a", Refusal(429, "rate_limited", "at its limit")))
    with pytest.raises(Refusal):
        await _ask(few, 0)
    assert few.reports == [("a", None, 0.0)]


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_a_refusal_for_lack_of_room_is_asked_again_and_closed(pauses: list[float], status: int) -> None:
    bad, good = Answer(status), Answer(200)
    few = Few(Scripted("a", bad, good))
    assert await _ask(few, 1) is good
    assert bad.is_closed
    assert few.reports == [("a", False, 0.0), ("a", True, 0.0)]
    assert len(pauses) == 1


@pytest.mark.parametrize("status", [200, 400, 401, 404, 408, 409, 422])
async def test_other_answers_are_passed_on(pauses: list[float], status: int) -> None:
    few = Few(Scripted("a", Answer(status)))
    assert (await _ask(few, 3)).status == status
    assert few.reports == [("a", True, 0.0)]


async def test_the_last_failure_is_passed_on_with_its_body(pauses: list[float]) -> None:
    last = Answer(503)
    assert await _ask(Few(Scripted("a", Answer(529), last)), 1) is last
    assert not last.is_closed


async def test_pauses_grow(pauses: list[float]) -> None:
    await _ask(Few(Scripted("a", *[Answer(503)] * 8)), 7)
    assert len(pauses) == 7
    for number, pause in enumerate(pauses):
        longest = min(0.25 * 2**number, 8.0)
        assert longest / 2 <= pause <= longest


async def test_another_upstream_is_asked_at_once(pauses: list[float]) -> None:
    first, second = Scripted("a", Unsent("no connection")), Scripted("b", Answer(200))
    assert (await _ask(Few(first, second), 1)).status == 200
    assert pauses == []


async def test_a_reset_is_never_asked_again_since_it_may_have_sampled(pauses: list[float]) -> None:
    upstream = Scripted("a", ConnectionResetError("gone"))
    few = Few(upstream)
    with pytest.raises(ConnectionResetError):
        await _ask(few, 5)
    assert upstream.asked == 1
    assert few.reports == [("a", False, 0.0)]


async def test_the_last_unsent_call_is_an_error(pauses: list[float]) -> None:
    with raises(Unsent, "second"):
        await _ask(Few(Scripted("a", Unsent("first"), Unsent("second"))), 1)


async def test_an_upstream_at_its_rate_gives_way_to_another(pauses: list[float]) -> None:
    full = Refusal(429, "rate_limited", "at its limit")
    assert (await _ask(Few(Scripted("a", full), Scripted("b", Answer(200))), 1)).status == 200
    with raises(Refusal, "at its limit"):
        await _ask(Few(Scripted("a", full)), 3)


async def test_a_pause_that_was_asked_for_is_kept(pauses: list[float]) -> None:
    few = Few(Scripted("a", Answer(429, retry_after="7"), Answer(200)))
    assert (await _ask(few, 1)).status == 200
    assert pauses == [7.0]
    assert few.reports[0] == ("a", False, 7.0)


@pytest.mark.parametrize("headers", [{"retry_after": "3600"}, {"x_should_retry": "false"}])
async def test_an_answer_that_asks_for_too_much_is_passed_on(pauses: list[float], headers: dict[str, str]) -> None:
    answer = Answer(429, **headers)
    assert await _ask(Few(Scripted("a", answer, Answer(200))), 3) is answer


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"retry_after": "2.5"}, 2.5),
        ({"retry_after": "soon"}, 0.0),
        ({"retry_after": "-3"}, 0.0),
        ({"retry_after": "nan"}, 0.0),
        ({"retry_after_ms": "250", "retry_after": "9"}, 0.25),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_the_time_to_wait_is_read_from_every_form(headers: dict[str, str], seconds: float) -> None:
    assert pause_asked_for(Answer(503, **headers)) == seconds
