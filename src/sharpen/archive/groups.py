"""Groups: rollouts of one task, side by side."""

from typing import Any

from ..store import LightningStore
from ..types import Rollout

MAX_GROUP = 64
MAX_SEARCHES = 3  # in each direction: a search has a bound of effort, so a page may come back half full


async def task_group(store: LightningStore, rollout: Rollout, *, limit: int = MAX_GROUP) -> list[Rollout]:
    """The rollouts of the same group, or of the same task where there are no groups; itself among them, oldest first.

    Of more than `limit` those that were enqueued nearest to it.
    """
    group = (rollout.metadata or {}).get("group")
    same: dict[str, Any] = {"group": group} if isinstance(group, str) else {"same_input_as": rollout.rollout_id}
    later = await _found(store, {**same, "started_after": rollout.start_time, "order": "oldest"}, limit)
    earlier = await _found(store, {**same, "started_before": rollout.start_time, "order": "newest"}, limit)
    others = [each for each in later if each.rollout_id != rollout.rollout_id]
    nearest = sorted([*others, *earlier], key=lambda each: abs(each.start_time - rollout.start_time))[: limit - 1]
    return sorted([rollout, *nearest], key=lambda each: (each.start_time, each.rollout_id))


async def _found(store: LightningStore, conditions: dict[str, Any], limit: int) -> list[Rollout]:
    found: list[Rollout] = []
    cursor: str | None = None
    for _ in range(MAX_SEARCHES):
        page = await store.search_rollouts(**conditions, cursor=cursor, limit=limit)
        found += page.items
        cursor = page.next_cursor
        if cursor is None or len(found) >= limit:
            break
    return found
