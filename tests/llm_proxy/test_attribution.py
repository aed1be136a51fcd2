"""Whether the attempt that a call names is wanted, as real stores say."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import StoreWriteError
from sharpen.store import InMemoryLightningStore, LightningStore, SQLiteStore
from sharpen.types import RolloutConfig, Span
from tests.llm_proxy.internals import SILENT_SECONDS, Attempts, Place, attribution


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LightningStore]:
    opened = InMemoryLightningStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db")
    yield opened
    await opened.close()


class Clock:
    """Time that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Counted(InMemoryLightningStore):
    """A store that counts how often it was asked, and may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.is_away = self.hangs = False

    async def get_rollout_by_id(self, rollout_id: str) -> Any:
        self.asked += 1
        if self.is_away:
            raise StoreWriteError("the disk is gone")
        if self.hangs:
            await asyncio.Event().wait()
        return await super().get_rollout_by_id(rollout_id)


async def _started(store: LightningStore, **config: Any) -> Place:
    rollout = await store.start_rollout("task", config=RolloutConfig(**config))
    return Place(rollout.rollout_id, rollout.attempt.attempt_id)


async def test_a_running_attempt_is_wanted(store: LightningStore) -> None:
    assert await Attempts(store).check(await _started(store)) is None


@pytest.mark.parametrize("place", [Place("nobody", "at-1"), Place("", ""), Place("a b", "c/d")])
async def test_an_unknown_rollout_is_not_found(store: LightningStore, place: Place) -> None:
    refusal = await Attempts(store).check(place)
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.should_retry) == (404, "unknown_attempt", False)
    assert repr(place.rollout_id) in refusal.message


async def test_an_unknown_attempt_of_a_known_rollout_is_not_found(store: LightningStore) -> None:
    place = await _started(store)
    refusal = await Attempts(store).check(Place(place.rollout_id, "at-other"))
    assert refusal is not None
    assert refusal.status == 404


async def test_a_rollout_without_attempts_is_not_found(store: LightningStore) -> None:
    rollout = await store.enqueue_rollout("task")
    refusal = await Attempts(store).check(Place(rollout.rollout_id, "at-1"))
    assert refusal is not None
    assert refusal.status == 404


async def test_an_ended_attempt_is_refused_with_its_ids_and_status(store: LightningStore) -> None:
    place = await _started(store)
    await store.complete_attempt(place.rollout_id, place.attempt_id, status="succeeded")
    refusal = await Attempts(store).check(place)
    assert refusal is not None
    assert (refusal.status, refusal.should_retry) == (409, False)
    for word in (place.rollout_id, place.attempt_id, "succeeded"):
        assert word in refusal.message


async def test_a_cancelled_rollout_is_refused(store: LightningStore) -> None:
    place = await _started(store)
    await store.cancel_rollouts([place.rollout_id])
    refusal = await Attempts(store).check(place)
    assert refusal is not None
    assert refusal.status == 409
    assert "cancelled" in refusal.message


async def test_an_attempt_that_another_one_has_replaced_is_refused(store: LightningStore) -> None:
    place = await _started(store, max_attempts=2, retry_condition=["failed"])
    await store.update_attempt(place.rollout_id, place.attempt_id, status="failed")
    refusal = await Attempts(store).check(place)
    assert refusal is not None
    assert refusal.status == 409
    second = await store.start_attempt(place.rollout_id)
    refusal = await Attempts(store).check(place)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (409, "attempt_ended")
    assert repr(place.attempt_id) in refusal.message
    assert await Attempts(store).check(Place(place.rollout_id, second.attempt.attempt_id)) is None


async def test_a_suspended_attempt_is_wanted_since_its_span_brings_it_back(store: LightningStore) -> None:
    place = await _started(store, max_attempts=2, retry_condition=["unresponsive"])
    await store.update_attempt(place.rollout_id, place.attempt_id, status="unresponsive")
    assert await Attempts(store).check(place) is None


async def test_a_wanted_attempt_is_asked_about_once_in_a_while() -> None:
    store, clock = Counted(), Clock()
    attempts, place = Attempts(store, fresh_seconds=1.0, clock=clock), await _started(store)
    for _ in range(10):
        assert await attempts.check(place) is None
    assert store.asked == 1
    clock.now += 1.01
    await attempts.check(place)
    assert store.asked == 2
    await store.close()


async def test_receipts_of_spans_keep_an_attempt_known() -> None:
    store, clock = Counted(), Clock()
    attempts, place = Attempts(store, fresh_seconds=1.0, clock=clock), await _started(store)
    for number in range(5):
        spans = [_span(place, f"{number:016x}")]
        attempts.heard(spans, await store.add_many_spans(spans))
        clock.now += 0.9
        assert await attempts.check(place) is None
    assert store.asked == 0
    await store.close()


async def test_a_receipt_that_names_an_unwanted_attempt_is_used_at_once() -> None:
    store, clock = Counted(), Clock()
    attempts, place = Attempts(store, fresh_seconds=1000.0, clock=clock), await _started(store)
    assert await attempts.check(place) is None
    await store.cancel_rollouts([place.rollout_id])
    spans = [_span(place, "0" * 16)]
    attempts.heard(spans, await store.add_many_spans(spans))
    refusal = await attempts.check(place)
    assert refusal is not None
    assert refusal.status == 409
    asked = store.asked
    assert (await attempts.check(place)) is not None
    assert store.asked == asked  # the reason is final
    await store.close()


async def test_while_the_store_is_away_known_attempts_go_on_and_others_wait() -> None:
    store, clock = Counted(), Clock()
    attempts, place = Attempts(store, fresh_seconds=1.0, clock=clock), await _started(store)
    assert await attempts.check(place) is None
    store.is_away = True
    clock.now += 60
    assert await attempts.check(place) is None
    refusal = await attempts.check(Place(place.rollout_id, "at-other"))
    assert refusal is not None
    assert (refusal.status, refusal.retry_after_seconds) == (503, 1.0)
    clock.now += 300
    refusal = await attempts.check(place)
    assert refusal is not None
    assert refusal.status == 503
    await store.close()


async def test_a_store_that_hangs_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "KNOWN_SECONDS", 0.01)
    monkeypatch.setattr(attribution, "NEW_SECONDS", 0.01)
    store, clock = Counted(), Clock()
    attempts, place = Attempts(store, fresh_seconds=1.0, clock=clock), await _started(store)
    assert await attempts.check(place) is None
    store.hangs = True
    clock.now += 60
    asked = store.asked
    for _ in range(5):
        assert await asyncio.wait_for(attempts.check(place), 5) is None
    assert store.asked == asked + 1  # the next calls do not wait once more
    refusal = await asyncio.wait_for(attempts.check(Place(place.rollout_id, "at-other")), 5)
    assert refusal is not None
    assert refusal.status == 503
    assert "0.01 s" in refusal.message
    store.hangs = False
    await store.cancel_rollouts([place.rollout_id])
    clock.now += SILENT_SECONDS
    refusal = await attempts.check(place)
    assert refusal is not None
    assert refusal.status == 409
    await store.close()


async def test_what_is_known_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "MAX_KNOWN", 10)
    store, clock = Counted(), Clock()
    attempts = Attempts(store, fresh_seconds=1.0, clock=clock)
    for _ in range(50):
        place = await _started(store)
        assert await attempts.check(place) is None
        clock.now += 1
        await store.cancel_rollouts([place.rollout_id])
        assert await attempts.check(place) is not None
    assert len(attempts._wanted) + len(attempts._unwanted) <= 10
    await store.close()


def _span(place: Place, span_id: str) -> Span:
    return Span.from_attributes(
        attributes={}, rollout_id=place.rollout_id, attempt_id=place.attempt_id, span_id=span_id
    )
