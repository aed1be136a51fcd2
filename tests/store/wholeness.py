"""What is true of every store at every moment, whatever was asked of it before: nothing half-written."""

from sharpen.store import LightningStore
from sharpen.types import ATTEMPT_STATUSES, ROLLOUT_STATUSES, Attempt, AttemptedRollout, Rollout
from tests.store.internals import FINISHED, OPEN, QUEUED


async def check_whole(store: LightningStore) -> None:
    """Every part belongs to its whole, and what is counted is what is found. Empties the queue to look into it."""
    rollouts = list(await store.query_rollouts())
    attempts = {rollout.rollout_id: list(await store.query_attempts(rollout.rollout_id)) for rollout in rollouts}
    spans = 0
    for rollout in rollouts:
        _check_rollout(rollout)
        _check_attempts(rollout, attempts[rollout.rollout_id], await store.get_rollout_by_id(rollout.rollout_id))
        spans += await _count_spans(store, rollout, attempts[rollout.rollout_id])
    await _check_statistics(store, rollouts, attempts, spans)
    await _check_resources(store, rollouts)
    await _check_finished(store, rollouts)
    await _check_queue(store, rollouts)


def _check_rollout(rollout: Rollout) -> None:
    assert rollout.status in ROLLOUT_STATUSES
    assert (rollout.end_time is not None) == (rollout.status in FINISHED), rollout


def _check_attempts(rollout: Rollout, attempts: list[Attempt], whole: Rollout | None) -> None:
    assert [attempt.sequence_id for attempt in attempts] == list(range(1, len(attempts) + 1))
    for attempt in attempts:
        assert attempt.rollout_id == rollout.rollout_id
        assert attempt.status in ATTEMPT_STATUSES
        assert (attempt.end_time is None) == (attempt.status in OPEN), attempt
    if attempts:
        assert isinstance(whole, AttemptedRollout)
        assert whole.attempt == attempts[-1]
    if rollout.status in FINISHED or rollout.status in QUEUED:
        assert not attempts or attempts[-1].status not in OPEN, rollout


async def _count_spans(store: LightningStore, rollout: Rollout, attempts: list[Attempt]) -> int:
    page = await store.query_spans(rollout.rollout_id)
    assert page.total == len(page)
    known = {attempt.attempt_id for attempt in attempts}
    for span in page:
        assert span.rollout_id == rollout.rollout_id
        assert span.attempt_id in known
    assert len({(span.attempt_id, span.span_id) for span in page}) == len(page)
    return page.total


async def _check_statistics(
    store: LightningStore, rollouts: list[Rollout], attempts: dict[str, list[Attempt]], spans: int
) -> None:
    statistics = await store.statistics()
    assert statistics["total_rollouts"] == len(rollouts)
    for status in ROLLOUT_STATUSES:
        count = sum(rollout.status == status for rollout in rollouts)
        assert statistics["rollouts_by_status"][status] == count
        assert (await store.query_rollouts(status_in=[status])).total == count
    assert statistics["queue_length"] == sum(rollout.status in QUEUED for rollout in rollouts)
    assert statistics["total_attempts"] == sum(map(len, attempts.values()))
    active = [rollout for rollout in rollouts if rollout.status in ("preparing", "running")]
    at_work = [attempts[rollout.rollout_id][-1:] for rollout in active]
    assert statistics["open_attempts"] == sum(attempt.status in OPEN for latest in at_work for attempt in latest)
    assert statistics["total_spans"] == spans
    assert statistics["total_resources"] == (await store.query_resources(all_versions=True)).total
    assert statistics["total_workers"] == (await store.query_workers()).total


async def _check_resources(store: LightningStore, rollouts: list[Rollout]) -> None:
    published = list(await store.query_resources(all_versions=True))
    versions: dict[str, int] = {}
    for update in published:
        assert update.version == versions.get(update.resources_id, 0) + 1
        versions[update.resources_id] = update.version
    assert await store.get_latest_resources() == (published[-1] if published else None)
    for rollout in rollouts:
        if rollout.resources_id is not None:
            assert 1 <= rollout.resources_version <= versions[rollout.resources_id]


async def _check_finished(store: LightningStore, rollouts: list[Rollout]) -> None:
    finished, cursor = [], 0
    while (page := await store.finished_rollouts(after=cursor, limit=100)).items:
        finished += page.items
        assert page.cursor > cursor
        cursor = page.cursor
    assert sorted(r.rollout_id for r in finished) == sorted(r.rollout_id for r in rollouts if r.status in FINISHED)


async def _check_queue(store: LightningStore, rollouts: list[Rollout]) -> None:
    """A rollout can be claimed exactly while it waits, and once."""
    claimed = []
    while batch := await store.dequeue_many_rollouts(limit=1000):
        claimed += [rollout.rollout_id for rollout in batch]
    assert sorted(claimed) == sorted(r.rollout_id for r in rollouts if r.status in QUEUED)
