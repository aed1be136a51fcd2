"""How many rollouts a run that works has finished, by its store: its metrics are some seconds behind."""

import msgspec

from ..errors import StoreError
from .catalog import RunEntry
from .opening import OpenedStore

FINISHED = ("succeeded", "failed", "cancelled")


async def counted_now(entry: RunEntry) -> RunEntry:
    """The same run with the rollouts that it has finished by now; without a count where nobody can tell."""
    if not entry.is_running or entry.kind != "agents":
        return entry
    count = await _finished(entry)
    others = {name: value for name, value in entry.metrics.items() if name != "rollouts"}
    return msgspec.structs.replace(entry, metrics=others if count is None else {**others, "rollouts": float(count)})


async def _finished(entry: RunEntry) -> int | None:
    if entry.store_path is None:
        return entry.rollouts or None  # in memory, or behind a server: 0 may only mean that nobody has counted yet
    try:
        async with OpenedStore(entry.store_path, run=entry, label=entry.name) as opened:
            by_status = (await opened.store.statistics())["rollouts_by_status"]
    except (StoreError, OSError):
        return None  # it is being made, or just went away
    return sum(by_status.get(status, 0) for status in FINISHED)
