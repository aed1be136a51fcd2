"""Asking upstreams, again where nothing was sampled and before a byte was passed on.

A refusal for lack of room (429, 503, 529) has sampled nothing. Other failures of a server may have come while it
sampled, or after: they are passed on, unless the answer itself says that it may be asked again.
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

UNSAMPLED = frozenset({429, 503, 529})
FAILED = UNSAMPLED | {500, 502, 504}
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0
LONGEST_ASKED_PAUSE = 60.0
_jitter = random.Random()


class Choice(Protocol):
    """Who may answer calls."""

    def choose(self, call: Call) -> Sequence[Upstream]:
        """Those that can answer this call, the best first; raises a Refusal where nobody can."""
        ...

    def report(self, upstream: Upstream, ok: bool | None, *, retry_after_seconds: float = 0.0) -> None:
        """Whether it did its part: False for no connection, no answer in time, a cut, a 429 or a 5xx.

        None where nobody can tell, such as when the agent hung up.
        """
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

    @property
    def is_late(self) -> bool:
        """Whether the work is cancelled because a limit has passed."""
        ...

    def allow(self, seconds: float, words: str) -> None:
        """The whole may take at least this long from now on."""
        ...

    def expect(self, seconds: float | None, words: str) -> None: ...


async def ask(
    call: Call, choice: Choice, clock: Clock, *, num_retries: int, first_byte_seconds: float | None
) -> tuple[Upstream, UpstreamAnswer]:
    """The first answer that is worth passing on, and who gave it. The last failure is raised."""
    upstreams = choice.choose(call)
    for number in range(1 + num_retries):
        upstream, is_last = upstreams[number % len(upstreams)], number == num_retries
        again = number + 1 - len(upstreams)  # how often the next one was asked before, less one
        _give_time(clock, upstream)
        clock.expect(first_byte_seconds, f"{upstream.name} did not begin its response in time")
        try:
            answer = await _send(call, upstream, choice, clock)
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
            if is_last or not _may_be_asked_again(answer) or asked > LONGEST_ASKED_PAUSE:
                return upstream, answer
            await answer.aclose()
            pause = max(_pause(again), asked if again >= 0 else 0.0)
        if pause:
            clock.expect(None, "")
            await asyncio.sleep(pause)
    raise AssertionError("unreachable: the last try returns or raises")


def _give_time(clock: Clock, upstream: Upstream) -> None:
    """An entry that allows itself more time than the gateway does has it."""
    seconds = getattr(getattr(upstream, "entry", None), "timeout", None)
    if seconds is not None:
        clock.allow(seconds, f"the call took longer than {seconds:g} s, the timeout of {upstream.name}")


async def _send(call: Call, upstream: Upstream, choice: Choice, clock: Clock) -> UpstreamAnswer:
    try:
        answer = await upstream.send(call)
    except (OSError, TimeoutError):
        choice.report(upstream, False)
        raise
    except BaseException:
        choice.report(upstream, False if clock.is_late else None)
        raise
    if answer.status in FAILED:
        asked = pause_asked_for(answer)
        choice.report(upstream, False, retry_after_seconds=asked if asked < LONGEST_ASKED_PAUSE else 0.0)
    else:
        choice.report(upstream, True)
    return answer


def _may_be_asked_again(answer: UpstreamAnswer) -> bool:
    if answer.status in UNSAMPLED:
        return True
    return answer.status in FAILED and dict(answer.headers).get("x-should-retry") == "true"


def _pause(again: int) -> float:
    """Another upstream is asked at once; everybody anew after a while that grows and is not the same for all."""
    if again < 0:
        return 0.0
    return min(FIRST_PAUSE * 2.0**again, LONGEST_PAUSE) * _jitter.uniform(0.5, 1.0)


def pause_asked_for(answer: UpstreamAnswer) -> float:
    """Seconds: what the answer says about asking again; infinite where it says not to."""
    if answer.status not in FAILED:
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

    def report(self, upstream: Upstream, ok: bool | None, *, retry_after_seconds: float = 0.0) -> None:
        """One that has no rivals is asked whatever happened before."""

    def settled(self, upstream: Upstream, usage: Usage | None) -> None:
        """It has no rates."""

    async def list_models(self, headers: Mapping[str, str]) -> ListedModels:
        return ListedModels([], ["*"], ["*"])

    async def aclose(self) -> None:
        close = getattr(self._upstream, "aclose", None)
        if close is not None:
            await close()
