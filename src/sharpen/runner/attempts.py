"""An attempt in a runner's hand: how it ended, and how that is told to the store."""

import asyncio
import logging
import traceback
from typing import Any

from ..errors import AgentTimeoutError, InvalidInputError, SharpenError, in_words, text_of
from ..secrets import hide_known
from ..store import LightningStore
from ..store.base import AttemptEnd
from ..types import AttemptedRollout, Span
from .courier import send_one_by_one
from .outbox import Outbox

log = logging.getLogger(__name__)
MAX_REASON = 4_000
PATIENCE_SECONDS = 120.0
HAND_BACK_SECONDS = 4.0
GONE_SECONDS = 0.5  # a runner that stops does not wait for a store that has gone


class Work:
    """One attempt while it runs."""

    def __init__(self, rollout: AttemptedRollout, store: LightningStore) -> None:
        self.rollout = rollout
        self.outbox = Outbox(store, rollout)
        self.task: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.error: BaseException | None = None
        self.is_settled = False
        self.is_unwanted = False

    def fail(self, error: BaseException) -> None:
        self.error = error
        if not self.is_unwanted:
            trace = error if log.isEnabledFor(logging.DEBUG) else None
            log.warning(
                "rollout %s failed: %s", self.rollout.rollout_id, hide_known(in_words(error))[:300], exc_info=trace
            )

    def cancel(self) -> None:
        """Nobody waits for it any more. May be called from any thread."""
        self.is_unwanted = True
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        if self.task is not None:
            self.task.cancel()

    @property
    def outcome(self) -> AttemptEnd:
        if self.error is None:
            return "succeeded"
        return "timeout" if isinstance(self.error, AgentTimeoutError) else "failed"


def reason(error: BaseException) -> dict[str, Any]:
    """Why an attempt failed, as it stands in its metadata."""
    return {
        "error_type": type(error).__name__,
        "error": hide_known(text_of(error))[:MAX_REASON] or type(error).__name__,
        "traceback": hide_known(_writable("".join(_traceback_of(error))))[-MAX_REASON:],
    }


def _traceback_of(error: BaseException) -> list[str]:
    try:
        return traceback.format_exception(error, limit=-10)
    except Exception:  # noqa: BLE001 - the same
        return traceback.format_tb(error.__traceback__, limit=-10)


def _writable(text: str) -> str:
    """Without lone surrogates, which no store can write."""
    return text.encode("utf-8", "replace").decode()


async def complete(store: LightningStore, work: Work) -> None:
    """Store the last spans and the outcome; a store that cannot write now is asked again for a while."""
    spans = await last_spans(work.outbox)
    ids = (work.rollout.rollout_id, work.rollout.attempt.attempt_id)
    about: dict[str, Any] = {} if work.error is None else {"metadata": reason(work.error)}
    end, pause = asyncio.get_running_loop().time() + PATIENCE_SECONDS, 0.1
    while True:
        try:
            await store.complete_attempt(*ids, spans=spans, status=work.outcome, **about)
            return
        except InvalidInputError as error:
            if not spans:
                log.error("the outcome of rollout %s was refused: %s", ids[0], error)
                return
            await send_one_by_one(store, spans, error)
            spans = []
        except Exception as error:  # noqa: BLE001 - a store of the user's own may raise anything
            if asyncio.get_running_loop().time() > end:
                log.error("the outcome of rollout %s could not be stored: %s", ids[0], error)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)


async def last_spans(outbox: Outbox) -> list[Span]:
    """Wait for the spans that are on their way; gives those that are left."""
    spans, sending = outbox.seal()
    while sending is not None:
        await asyncio.shield(asyncio.wrap_future(sending))
        spans, sending = outbox.seal()
    return spans


def hand_back_seconds(store: LightningStore) -> float:
    """How long to try to hand something back: the store may be away, as it knows where it is a server's client."""
    return GONE_SECONDS if getattr(store, "is_away", False) else HAND_BACK_SECONDS


def why_not(error: BaseException) -> str:
    """Why something could not be handed back."""
    return "the store does not answer" if isinstance(error, TimeoutError) else in_words(error)


async def hand_back(store: LightningStore, work: Work) -> None:
    """Keep what was recorded and put the rollout back into the queue, for another runner or the next run."""
    try:
        async with asyncio.timeout(hand_back_seconds(store)):
            spans = await last_spans(work.outbox)
            if spans:
                await store.add_many_spans(spans)
            await store.update_rollout(work.rollout.rollout_id, status="requeuing")
    except (SharpenError, TimeoutError) as error:
        log.warning("rollout %s could not be handed back: %s", work.rollout.rollout_id, why_not(error))
    else:
        log.info("rollout %s is handed back to the queue", work.rollout.rollout_id)
