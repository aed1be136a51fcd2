"""Why the rollouts of a run failed: how many, the most common reason, and one to look at."""

from collections import Counter

import msgspec

from .catalog import RunEntry
from .opening import OpenedStore
from .transcript import why_ended

_LOOKED_AT = 200


class Failures(msgspec.Struct, frozen=True):
    """Of the newest failed rollouts of a run."""

    reason: str
    """The most common one, on one line."""
    rollout_id: str
    """The newest that failed for it."""


async def failures_of(entry: RunEntry) -> Failures | None:
    """None where no rollout failed, or where the store of the run lies elsewhere."""
    if entry.store_path is None:
        return None
    async with OpenedStore(entry.store_path, run=entry, label=entry.name) as opened:
        page = await opened.store.search_rollouts(status_in=["failed"], limit=_LOOKED_AT)
        reasons: dict[str, str] = {}
        for rollout in page.items:
            attempt = await opened.store.get_latest_attempt(rollout.rollout_id)
            told = None if attempt is None else why_ended(attempt)
            reasons[rollout.rollout_id] = " ".join((told or "no reason was given").split())
    if not reasons:
        return None
    reason, _ = Counter(reasons.values()).most_common(1)[0]
    return Failures(reason, next(each for each, why in reasons.items() if why == reason))
