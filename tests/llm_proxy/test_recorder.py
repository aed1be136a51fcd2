"""Spans reach the store together, and none is lost while the store is away."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from sharpen.errors import StoreWriteError
from sharpen.store import InMemoryLightningStore, SQLiteStore
from sharpen.types import AttemptedRollout, Span, StoredSpans
from tests.llm_proxy.internals import Recorder


class Slow(InMemoryLightningStore):
    """A store that counts its calls, takes none before `may_go` is set, and fails as often as told."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.failures = 0
        self.may_go = asyncio.Event()
        self.may_go.set()

    async def add_many_spans(self, spans: Sequence[Span]) -> StoredSpans:
        self.batches.append(len(spans))
        await self.may_go.wait()
        if self.failures:
            self.failures -= 1
            raise StoreWriteError("the disk is full")
        return await super().add_many_spans(spans)


def _span(rollout: AttemptedRollout, **attributes: object) -> Span:
    return Span.from_attributes(
        attributes=attributes, rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id
    )


async def _count(store: InMemoryLightningStore | SQLiteStore, rollout: AttemptedRollout) -> int:
    return len(await store.query_spans(rollout.rollout_id))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_span_is_stored_when_write_returns(kind: str, tmp_path: Path) -> None:
    store = InMemoryLightningStore() if kind == "memory" else SQLiteStore(tmp_path / "store.db")
    rollout, recorder = await store.start_rollout("task"), Recorder(store)
    assert await recorder.write(_span(rollout)) is True
    assert await _count(store, rollout) == 1
    assert recorder.waiting_bytes == 0
    await recorder.aclose()
    await store.close()


async def test_spans_that_come_meanwhile_leave_together() -> None:
    store = Slow()
    rollout, recorder = await store.start_rollout("task"), Recorder(store)
    store.may_go.clear()
    writes = [asyncio.ensure_future(recorder.write(_span(rollout)))]
    await asyncio.sleep(0.01)
    writes += [asyncio.ensure_future(recorder.write(_span(rollout))) for _ in range(50)]
    await asyncio.sleep(0)
    store.may_go.set()
    assert all(await asyncio.gather(*writes))
    assert store.batches == [1, 50]
    assert await _count(store, rollout) == 51


async def test_receipts_are_handed_on() -> None:
    store, heard = InMemoryLightningStore(), []
    rollout = await store.start_rollout("task")
    recorder = Recorder(store, heard=lambda spans, stored: heard.append((len(spans), stored.unwanted)))
    await recorder.write(_span(rollout))
    await store.cancel_rollouts([rollout.rollout_id])
    await recorder.write(_span(rollout))
    assert heard == [(1, ()), (1, (rollout.attempt.attempt_id,))]


async def test_a_slow_store_holds_nobody_longer_than_allowed_and_gets_the_span_all_the_same() -> None:
    store = Slow()
    rollout, recorder = await store.start_rollout("task"), Recorder(store, record_seconds=0.02)
    store.may_go.clear()
    assert await recorder.write(_span(rollout)) is False
    assert await _count(store, rollout) == 0
    assert recorder.waiting_bytes > 0
    store.may_go.set()
    await recorder.aclose()
    assert await _count(store, rollout) == 1
    assert (recorder.lost, recorder.waiting_bytes) == (0, 0)


async def test_a_store_that_cannot_write_is_asked_again_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    store = Slow()
    rollout, recorder = await store.start_rollout("task"), Recorder(store)
    store.failures = 2
    with caplog.at_level(logging.ERROR, "sharpen"):
        assert await recorder.write(_span(rollout)) is True
    assert store.batches == [1, 1, 1]
    (error,) = caplog.records
    assert "the disk is full" in error.getMessage()


async def test_one_bad_span_does_not_take_others_with_it(caplog: pytest.LogCaptureFixture) -> None:
    store = Slow()
    rollout, recorder = await store.start_rollout("task"), Recorder(store)
    stranger = Span.from_attributes(attributes={}, rollout_id="ro-gone", attempt_id="at-gone")
    with caplog.at_level(logging.ERROR, "sharpen"):
        written = await asyncio.gather(*(recorder.write(each) for each in (_span(rollout), stranger, _span(rollout))))
    assert written == [True, False, True]
    assert await _count(store, rollout) == 2
    assert (recorder.lost, recorder.waiting_bytes) == (1, 0)
    assert "'ro-gone'" in caplog.text


async def test_a_span_that_cannot_be_written_down_holds_up_nobody(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    rollout, recorder = await store.start_rollout("task"), Recorder(store)
    assert await recorder.write(_span(rollout, odd=object())) is False
    assert await recorder.write(_span(rollout, fine=1)) is True
    assert await _count(store, rollout) == 1
    await store.close()


async def test_what_waits_is_bounded_and_what_is_lost_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = Slow()
    rollout = await store.start_rollout("task")
    recorder = Recorder(store, record_seconds=0.01, max_bytes=10_000)
    store.may_go.clear()
    with caplog.at_level(logging.ERROR, "sharpen"):
        await recorder.write(_span(rollout, text="x" * 8000))
        assert await recorder.write(_span(rollout, text="x" * 8000)) is False
    assert recorder.lost == 1
    assert f"rollout {rollout.rollout_id!r}" in caplog.text
    store.may_go.set()
    await recorder.aclose()
    assert await _count(store, rollout) == 1


async def test_a_caller_that_is_cancelled_does_not_take_its_span_with_it() -> None:
    store = Slow()
    rollout, recorder = await store.start_rollout("task"), Recorder(store)
    store.may_go.clear()
    writing = asyncio.ensure_future(recorder.write(_span(rollout)))
    await asyncio.sleep(0.01)
    writing.cancel()
    store.may_go.set()
    await recorder.aclose()
    assert await _count(store, rollout) == 1


async def test_closing_does_not_wait_for_ever_and_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    store = Slow()
    rollout, recorder = await store.start_rollout("task"), Recorder(store, record_seconds=0.01)
    store.may_go.clear()
    await recorder.write(_span(rollout))
    with caplog.at_level(logging.ERROR, "sharpen"):
        await recorder.aclose(timeout=0.01)
    assert recorder.lost == 1
    assert rollout.rollout_id in caplog.text
