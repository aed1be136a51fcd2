"""`Attempts`: whether the attempt that a call names exists and is still wanted.

Asked of the store at most once in `fresh_seconds` for an attempt, and not at all while its spans are stored: their
receipts say the same. When the store does not answer, an attempt that was wanted a moment ago is taken to be so still.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Iterable

from ..errors import InvalidInputError, StoreError
from ..store import LightningStore
from ..types import Attempt, AttemptedRollout, Rollout, Span, StoredSpans
from .calls import Place, Refusal

STALE_SECONDS = 300.0  # how long a store may be away before attempts become unknown
# How long the store may think. A new attempt has nobody else to vouch for it; a known one goes on without the answer.
NEW_SECONDS, KNOWN_SECONDS = 10.0, 2.0
SILENT_SECONDS = 10.0  # after a question that got no answer, known attempts go on without asking
MAX_KNOWN = 10_000
ENDED = frozenset({"succeeded", "failed", "timeout"})

Key = tuple[str, str]


class Attempts:
    """What is known about attempts at the moment. With `strict=False` nothing is refused."""

    def __init__(
        self,
        store: LightningStore,
        fresh_seconds: float = 1.0,
        *,
        strict: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.strict = strict
        self._store, self._fresh_seconds, self._clock = store, fresh_seconds, clock
        self._wanted: dict[Key, float] = {}
        """When each was last heard to be wanted."""
        self._unwanted: dict[Key, str] = {}
        """Why; whatever the reason, it is final."""
        self._silent_until = 0.0

    async def check(self, place: Place) -> Refusal | None:
        """Why the attempt may not call: it is unknown (404), or nobody waits for it any more (409)."""
        key = place.rollout_id, place.attempt_id
        heard = self._wanted.get(key)
        if heard is not None and self._clock() - heard < self._fresh_seconds:
            return None
        if key in self._unwanted:
            return _ended(place, self._unwanted[key])
        if heard is not None and self._clock() < self._silent_until and self._is_recent(heard):
            return None
        try:
            refusal = await self._ask_in_time(place, NEW_SECONDS if heard is None else KNOWN_SECONDS)
        except InvalidInputError:  # an id that no store would give
            refusal = _unknown(place)
        except (StoreError, OSError) as error:
            return self._while_store_is_away(heard, error)
        if refusal is None:
            self._note(key)
        return refusal

    def heard(self, spans: Iterable[Span], stored: StoredSpans) -> None:
        """Spans were stored, and the receipt says whose attempts are unwanted."""
        now, unwanted = self._clock(), set(stored.unwanted)
        for span in spans:
            key = span.rollout_id, span.attempt_id
            if span.attempt_id in unwanted:
                self._wanted.pop(key, None)  # the store is asked for the reason when it calls again
            else:
                self._wanted[key] = now

    async def _ask_in_time(self, place: Place, seconds: float) -> Refusal | None:
        try:
            async with asyncio.timeout(seconds):
                refusal = await self._ask(place)
        except TimeoutError:
            self._silent_until = self._clock() + SILENT_SECONDS
            raise TimeoutError(f"no response within {seconds:g} s") from None
        self._silent_until = 0.0
        return refusal

    async def _ask(self, place: Place) -> Refusal | None:
        rollout = await self._store.get_rollout_by_id(place.rollout_id)
        latest = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        if rollout is None or latest is None:
            return _unknown(place)
        # The id may be all that admits a call. (Lookups by a key compare its random hash first, which tells nothing.)
        if hmac.compare_digest(latest.attempt_id.encode(), place.attempt_id.encode(errors="surrogatepass")):
            why = _why_unwanted(rollout, latest)
        elif await self._exists(place):
            why = "a newer attempt has replaced it"
        else:
            return _unknown(place)
        return None if why is None else self._refuse(place, why)

    async def _exists(self, place: Place) -> bool:
        known = await self._store.query_attempts(place.rollout_id)
        return any(each.attempt_id == place.attempt_id for each in known)

    def _refuse(self, place: Place, why: str) -> Refusal:
        key = place.rollout_id, place.attempt_id
        self._wanted.pop(key, None)
        self._make_room()
        self._unwanted[key] = why
        return _ended(place, why)

    def _note(self, key: Key) -> None:
        self._make_room()
        self._wanted[key] = self._clock()

    def _make_room(self) -> None:
        if len(self._wanted) + len(self._unwanted) < MAX_KNOWN:
            return
        """Keep what was heard lately; everything else can be asked again."""
        latest = self._clock() - self._fresh_seconds
        self._wanted = {key: heard for key, heard in self._wanted.items() if heard > latest}
        self._unwanted.clear()

    def _is_recent(self, heard: float) -> bool:
        return self._clock() - heard < STALE_SECONDS

    def _while_store_is_away(self, heard: float | None, error: Exception) -> Refusal | None:
        if heard is not None and self._is_recent(heard):
            return None
        return Refusal(
            503,
            "store_unavailable",
            f"the store cannot be asked whether this attempt is still active: {error}",
            retry_after_seconds=1.0,
        )


def _why_unwanted(rollout: Rollout, attempt: Attempt) -> str | None:
    """None where it is wanted; an unresponsive attempt is, since its next span brings it back."""
    if rollout.is_finished:
        return f"its rollout has {_past(rollout.status)}"
    return f"it has {_past(attempt.status)}" if attempt.status in ENDED else None


def _past(status: str) -> str:
    return {"cancelled": "been cancelled", "timeout": "timed out"}.get(status, status)


def _unknown(place: Place) -> Refusal:
    return Refusal(
        404,
        "unknown_attempt",
        f"rollout {place.rollout_id!r} with attempt {place.attempt_id!r} does not exist: "
        "use the base URL that the rollout received",
        should_retry=False,
    )


def _ended(place: Place, why: str) -> Refusal:
    return Refusal(
        409,
        "attempt_ended",
        f"attempt {place.attempt_id!r} of rollout {place.rollout_id!r} is no longer active: {why}",
        should_retry=False,
    )
