"""The life of a call: it is admitted, somebody is chosen and asked, the answer is passed on, and all is written down.

Invariants:
- the agent gets the answer of its upstream byte for byte, errors too; the gateway speaks only where there is none;
- a call is settled and written down once, in whatever way it ends; its span is stored before its last byte is sent;
- what was cut is cut for the agent too: an answer never looks complete when it is not.

A gateway belongs to one event loop. It is built from its parts, so that it runs in a thread as in a process.
"""

import asyncio
import logging

import msgspec
from starlette.types import Receive, Send

from ..errors import describe
from ..http.client import Unsent
from .attribution import Attempts
from .bookkeeping import Books, Passage
from .budgets.totals import Totals
from .calls import Api, Call, Place, Refusal
from .dialects import Dialect, error_body, error_headers
from .options import GatewayOptions
from .pausing import Gate, stopping
from .relay import relay
from .retries import Choice, ask
from .watching import HungUp, TimedOut, Watch

log = logging.getLogger(__name__)


class Gateway:
    """`choice` is an `Upstreams`, or `Only(replay)`. Without `attempts` (no store) no call belongs to an attempt."""

    def __init__(
        self,
        *,
        choice: Choice,
        books: Books,
        attempts: Attempts | None = None,
        gate: Gate | None = None,
        options: GatewayOptions | None = None,
    ) -> None:
        self.choice, self.books, self.attempts = choice, books, attempts
        self.gate = gate or Gate()
        self.options = options or GatewayOptions()

    async def serve(self, call: Call, receive: Receive, send: Send) -> None:
        """Answer one call. Returns when the agent has its answer, or nobody is left to answer to."""
        passage = self.books.open(call)
        try:
            with Watch(receive) as watch:
                await self._admit(passage)
                await self._pass_on(passage, send, watch)
        except HungUp as error:
            await self._end_unheard(passage, str(error))
        except Refusal as refusal:
            await self._refuse(passage, refusal, send)
        except (OSError, TimeoutError) as error:
            await self._fail(passage, error, send)
        except asyncio.CancelledError:
            # The server stops and has waited long enough: this is the last word, so the task may end in order.
            await self._stop(passage, send)
        except Exception as error:
            log.exception("call %s failed in the gateway", call.call_id)
            await self._fail(passage, error, send)
        finally:
            if passage.has_entered:
                self.gate.leave()

    def totals(self) -> Totals:
        """What was called, refused, spent and lost."""
        return msgspec.structs.replace(self.books.budget.totals(), lost=self.books.recorder.lost)

    async def aclose(self) -> None:
        """Write what is left, and close the connections to upstreams."""
        await self.books.aclose()
        await self.choice.aclose()

    # -- in ------------------------------------------------------------------------------------------

    async def _admit(self, passage: Passage) -> None:
        await self._check_attempt(passage.call)
        has_waited = await self.gate.enter()
        passage.has_entered = True
        if has_waited:  # what was wanted before the pause may have ended in it
            await self._check_attempt(passage.call)
        refusal = await self.books.budget.admit(passage.call)
        if refusal is not None:
            passage.is_counted = True
            raise refusal
        passage.is_admitted = True

    async def _check_attempt(self, call: Call) -> None:
        if call.place is None:
            return None
        if not call.has_token:
            return await self.check_credential(call.place)
        refusal = None if self.attempts is None else await self.attempts.check(call.place)
        if self.attempts is None or (refusal is not None and not self.attempts.strict):
            call.place = None
        elif refusal is not None:
            raise refusal
        return None

    async def check_credential(self, place: Place) -> None:
        """Refuse whoever shows no token and does not know the id of an open attempt."""
        if self.attempts is None:
            raise Refusal(401, "wrong_token", "this gateway has no store, so every call needs its token")
        refusal = await self.attempts.check(place)
        if refusal is not None:
            raise refusal

    # -- through -------------------------------------------------------------------------------------

    async def _pass_on(self, passage: Passage, send: Send, watch: Watch) -> None:
        options = self.options
        watch.limit(options.timeout_seconds, f"the call took longer than {options.timeout_seconds:g} s")
        upstream, answer = await ask(
            passage.call,
            self.choice,
            watch,
            num_retries=options.num_retries,
            first_byte_seconds=options.first_byte_seconds,
        )
        try:
            await relay(
                passage, upstream, answer, send, books=self.books, watch=watch, chunk_seconds=options.chunk_seconds
            )
        finally:
            await answer.aclose()

    # -- ends ----------------------------------------------------------------------------------------

    async def _end_unheard(self, passage: Passage, why: str) -> None:
        """Nobody listens any more; what came is kept, and so is what was asked."""
        if passage.is_admitted:
            await self.books.note(passage, error=why)

    async def _stop(self, passage: Passage, send: Send) -> None:
        await self._end_unheard(passage, "the gateway was stopped")
        if not passage.is_answering:
            await say(stopping(), passage.call.api, send, call_id=passage.call.call_id)

    async def _fail(self, passage: Passage, error: Exception, send: Send) -> None:
        """The upstream gave no answer, or not all of it."""
        refusal = _failure(error)
        if passage.upstream is not None and not isinstance(error, TimedOut):
            self.choice.report(passage.upstream, False)
        if passage.is_admitted:
            await self.books.note(passage, error=refusal.message)
        else:
            await self.books.note_refusal(passage, refusal)
        if not passage.is_answering:
            await say(refusal, passage.call.api, send, call_id=passage.call.call_id)
        # Else the server cuts the connection, since the answer was not completed.

    async def _refuse(self, passage: Passage, refusal: Refusal, send: Send) -> None:
        await self.books.note_refusal(passage, refusal)
        await say(refusal, passage.call.api, send, call_id=passage.call.call_id)


def _failure(error: Exception) -> Refusal:
    if isinstance(error, TimedOut):
        return Refusal(504, "timeout", str(error))
    if isinstance(error, TimeoutError):
        return Refusal(504, "timeout", f"the upstream did not respond in time: {describe(error)}")
    if isinstance(error, Unsent):
        return Refusal(502, "upstream_unreachable", f"the upstream cannot be reached: {error}")
    if isinstance(error, OSError):
        return Refusal(502, "upstream_failed", f"the upstream closed the connection early: {describe(error)}")
    return Refusal(500, "internal_error", "internal error; see the log of the gateway")


def dialect_of(api: Api) -> Dialect:
    return "anthropic" if api == "messages" else "openai"


async def say(refusal: Refusal, api: Api, send: Send, *, call_id: str) -> None:
    """Answer in the gateway's own words."""
    body = error_body(refusal, dialect_of(api))
    headers = [
        *error_headers(refusal),
        (b"content-length", b"%d" % len(body)),
        (b"x-sharpen-call-id", call_id.encode()),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
