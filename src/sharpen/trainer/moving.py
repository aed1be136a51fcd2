"""When a run goes on and its gateway has another address, the rollouts that wait in the store are told."""

from ..algorithm.handed_on import moved
from ..store import LightningStore
from ..store.transitions import FINISHED
from ..types import ROLLOUT_STATUSES

OPEN = [status for status in ROLLOUT_STATUSES if status not in FINISHED]
Bound = tuple[str, int]


async def move_endpoint(store: LightningStore, old: str, new: str) -> None:
    """Give every rollout that is not finished its own resources again, with the new address in them."""
    waiting: dict[Bound, list[str]] = {}
    for rollout in await store.query_rollouts(status_in=OPEN):
        if rollout.resources_id is not None and rollout.resources_version is not None:
            waiting.setdefault((rollout.resources_id, rollout.resources_version), []).append(rollout.rollout_id)
    latest = await store.get_latest_resources()
    if latest is None:
        return
    # Last, so that it is the latest again.
    last = latest.resources_id, latest.version
    of_latest = waiting.pop(last, [])
    told = [await _tell(store, bound, rollout_ids, old, new) for bound, rollout_ids in waiting.items()]
    is_told = await _tell(store, last, of_latest, old, new)
    if any(told) and not is_told:
        await store.update_resources(latest.resources_id, latest.resources)


async def _tell(store: LightningStore, bound: Bound, rollout_ids: list[str], old: str, new: str) -> bool:
    """Whether anything was published."""
    resources_id = await _publish_moved(store, bound, old, new)
    if resources_id is None:
        return False
    for rollout_id in rollout_ids:
        await store.update_rollout(rollout_id, resources_id=resources_id)
    return True


async def _publish_moved(store: LightningStore, bound: Bound, old: str, new: str) -> str | None:
    """The id of the resources with the new address: a version of the same where nothing newer would be undone."""
    resources_id, version = bound
    found = await store.get_resources_by_id(resources_id, version)
    newest = await store.get_resources_by_id(resources_id)
    if found is None or newest is None:
        return None
    resources = moved(found.resources, old, new)
    if resources == found.resources:
        return None
    if newest.version == version:
        return (await store.update_resources(resources_id, resources)).resources_id
    return (await store.add_resources(resources)).resources_id
