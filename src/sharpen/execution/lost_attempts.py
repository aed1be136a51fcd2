"""Attempts whose worker is known to be dead: they are given up at once, without waiting for their lease to expire."""

import asyncio
import contextlib
import logging
import socket

from ..errors import FinishedError
from ..files import is_alive
from ..store import LightningStore
from ..types import Attempt, Worker

log = logging.getLogger(__name__)


async def open_attempts(store: LightningStore) -> list[Attempt]:
    """Return the attempts that somebody works on, or is believed to."""
    rollouts = await store.query_rollouts(status_in=["preparing", "running"])
    latest = await asyncio.gather(*(store.get_latest_attempt(rollout.rollout_id) for rollout in rollouts))
    # One whose lease has expired is waited for once more, unless its worker is known to be dead.
    return [each for each in latest if each is not None and (each.end_time is None or each.status == "unresponsive")]


async def lose(store: LightningStore, attempt: Attempt, error: str) -> None:
    """Suspend the attempt. Where nobody will try again the rollout fails, as its dead runner cannot come back."""
    rollout_id, attempt_id = attempt.rollout_id, attempt.attempt_id
    metadata = {**(attempt.metadata or {}), "error_type": "RunnerDied", "error": error}
    await store.update_attempt(rollout_id, attempt_id, status="unresponsive", metadata=metadata)
    rollout = await store.get_rollout_by_id(rollout_id)
    latest = await store.get_latest_attempt(rollout_id)
    # A rollout that was queued may have been claimed again already: then another attempt is the latest.
    is_ours = latest is not None and latest.attempt_id == attempt_id and latest.status == "unresponsive"
    if is_ours and rollout is not None and rollout.status in ("preparing", "running"):
        with contextlib.suppress(FinishedError):  # somebody has ended it meanwhile
            await store.update_rollout(rollout_id, status="failed")


async def lose_those_of_the_dead(store: LightningStore) -> int:
    """Give up the attempts of processes of this machine that are gone, and return how many there were.

    For a run that is resumed after it was killed: its runners died with it.
    """
    count = 0
    for attempt in await open_attempts(store):
        worker = None if attempt.worker_id is None else await store.get_worker_by_id(attempt.worker_id)
        if worker is not None and _is_dead(worker):
            await lose(store, attempt, f"its worker {worker.worker_id} was gone when the run was resumed")
            count += 1
    if count:
        log.info("retrying %d rollouts whose workers are gone", count)
    return count


def _is_dead(worker: Worker) -> bool:
    """Whether it was a process of this machine that is gone. The number of a dead one may be another's by now: then it
    is believed to live, and its lease decides."""
    about = worker.heartbeat_stats or {}
    pid = about.get("pid")
    if about.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    return not is_alive(pid)
