"""Asking upstreams, again where nothing was sampled and before a byte was passed on.

Up to `num_retries` more times: another upstream at once, one that was asked before after a pause that doubles. An
upstream that says how long to wait is listened to; where that is too long, its answer is passed on instead.
"""

import asyncio
import email.utils
import random
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from ..http.client import Unsent
from .calls import Call, Refusal, Upstream, UpstreamAnswer, Usage
from .models.listing import ListedModels

AGAIN = frozenset({429, 500, 502, 503, 504, 529})
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0
LONGEST_ASKED_PAUSE = 60.0
_jitter = random.Random()


class Choice(Protocol):
    """Who may answer calls."""

    def choose(self, call: Call) -> Sequence[Upstream]:
        """Those that can answer this call, the best first; raises a Refusal where nobody can."""
        ...

    def report(self, upstream: Upstream, ok: bool, *, retry_after_seconds: float = 0.0) -> None:
        """Whether it did its part: False for no connection, a cut, a 429 or a 5xx."""
        ...

    def settled(self, upstream: Upstream, usage: Usage | None) -> None:
        """The tokens that a call used there."""
        ...

    async def list_models(self, headers: Mapping[str, str]) -> ListedModels:
        """What agents can ask for; `headers` are those of the client that wants to know."""
        ...

    async def aclose(self) -> None: ...


class Clock(Protocol):
    """Whoever watches over the time of a call."""

    def expect(self, seconds: float | None, words: str) -> None: ...


async def ask(
    call: Call, choice: Choice, clock: Clock, *, num_retries: int, first_byte_seconds: float | None
) -> tuple[Upstream, UpstreamAnswer]:
    """The first answer that is worth passing on, and who gave it. The last failure is raised."""
    upstreams = choice.choose(call)
    for number in range(1 + num_retries):
        upstream, is_last = upstreams[number % len(upstreams)], number == num_retries
        again = number + 1 - len(upstreams)  # how often the next one was asked before, less one
        clock.expect(first_byte_seconds, f"{upstream.name} did not begin to answer in time")
        try:
            answer = await _send(call, upstream, choice)
        except Unsent:
            if is_last:
                raise
            pause = _pause(again)
        except Refusal:
            if is_last or again >= 0:
                raise
            pause = 0.0
        else:
            asked = pause_asked_for(answer)
            if is_last or answer.status not in AGAIN or asked > LONGEST_ASKED_PAUSE:
                return upstream, answer
            await answer.aclose()
            pause = max(_pause(again), asked if again >= 0 else 0.0)
        if pause:
            clock.expect(None, "")
            await asyncio.sleep(pause)
    raise AssertionError("unreachable: the last try returns or raises")


async def _send(call: Call, upstream: Upstream, choice: Choice) -> UpstreamAnswer:
    try:
        answer = await upstream.send(call)
    except (OSError, TimeoutError):
        choice.report(upstream, False)
        raise
    if answer.status in AGAIN:
        asked = pause_asked_for(answer)
        choice.report(upstream, False, retry_after_seconds=asked if asked < LONGEST_ASKED_PAUSE else 0.0)
    else:
        choice.report(upstream, True)
    return answer


def _pause(again: int) -> float:
    """Another upstream is asked at once; everybody anew after a while that grows and is not the same for all."""
    if again < 0:
        return 0.0
    return min(FIRST_PAUSE * 2.0**again, LONGEST_PAUSE) * _jitter.uniform(0.5, 1.0)


def pause_asked_for(answer: UpstreamAnswer) -> float:
    """Seconds: what the answer says about asking again; infinite where it says not to."""
    if answer.status not in AGAIN:
        return 0.0
    headers = dict(answer.headers)
    if headers.get("x-should-retry") == "false":
        return float("inf")
    if "retry-after-ms" in headers:
        return _number(headers["retry-after-ms"]) / 1000
    return _seconds(headers.get("retry-after", ""))


def _seconds(value: str) -> float:
    """A number of seconds, or a date."""
    if not value.strip() or value.strip()[0].isdigit():
        return _number(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0


def _number(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        return 0.0
    return number if 0 <= number < float("inf") else 0.0


class Only:
    """A choice of one upstream, such as a replay, which knows every model that it can answer for."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def choose(self, call: Call) -> Sequence[Upstream]:
        return (self._upstream,)

    def report(self, upstream: Upstream, ok: bool, *, retry_after_seconds: float = 0.0) -> None:
        """One that has no rivals is asked whatever happened before."""

    def settled(self, upstream: Upstream, usage: Usage | None) -> None:
        """It has no rates."""

    async def list_models(self, headers: Mapping[str, str]) -> ListedModels:
        return ListedModels([], ["*"], ["*"])

    async def aclose(self) -> None:
        close = getattr(self._upstream, "aclose", None)
        if close is not None:
            await close()
