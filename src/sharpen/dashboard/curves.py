"""The curves of a run for its page: from its metrics or, if it has none, from its newest finished rollouts."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from ..archive.curves import Series, main_metrics, read_curves
from ..store import LightningStore
from ..types import Rollout

MAX_POINTS = 1500
NEWEST = 2000
RATE_POINTS = 60
FEW = 6


class Curves(msgspec.Struct, frozen=True):
    """The curves that a page draws."""

    run: str
    names: list[str]
    """The names of all metrics."""
    main: list[str]
    """Those that are shown unless others are requested."""
    start: float | None
    """The time from which seconds are counted."""
    series: dict[str, Series]


def curves_of_file(run: str, path: Path, wanted: Sequence[str]) -> Curves:
    """Return the requested metrics, or the main ones."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return Curves(run, [], [], None, {})
    all_series = _read(path, found.st_mtime_ns, found.st_size)
    main = first_metrics(all_series)
    chosen = [name for name in wanted if name in all_series] if wanted else main
    start = next((s.times[0] - s.steps[0] for s in all_series.values() if s.axis == "seconds" and s.times), None)
    return Curves(run, sorted(all_series), main, start, {name: all_series[name] for name in chosen})


def first_metrics(names: Collection[str]) -> list[str]:
    """Return the main metrics and, if they are few, others after them."""
    main = main_metrics(names)
    others = sorted(name for name in names if name not in main)
    return main + others[: max(FEW - len(main), 0)]


@lru_cache(maxsize=16)
def _read(path: Path, mtime_ns: int, size: int) -> dict[str, Series]:
    """Read the file again only if its time or size has changed."""
    return read_curves(path, max_points=MAX_POINTS)


class Newest(msgspec.Struct, frozen=True):
    """The mean reward and rate of the rollouts that finished last."""

    count: int
    reward: float | None
    rollouts_per_second: float | None


async def newest_of_store(store: LightningStore, count: int = 200) -> Newest:
    """Return the recent reward and rate, for a store without metrics."""
    page = await store.search_rollouts(status_in=["succeeded", "failed"], order="finished", limit=count)
    rewards = [each.reward for each in page.items if each.reward is not None]
    ends = [each.end_time for each in page.items if each.end_time is not None]
    seconds = max(ends) - min(ends) if ends else 0.0
    return Newest(
        count=len(page.items),
        reward=sum(rewards) / len(rewards) if rewards else None,
        rollouts_per_second=(len(ends) - 1) / seconds if seconds > 0 else None,
    )


async def curves_of_store(run: str, store: LightningStore, wanted: Sequence[str]) -> Curves:
    """Return the rewards of the newest finished rollouts in the order they finished, and their rate."""
    items: list[Rollout] = []
    cursor = None
    while len(items) < NEWEST:
        page = await store.search_rollouts(
            status_in=["succeeded", "failed"], order="finished", cursor=cursor, limit=min(1000, NEWEST - len(items))
        )
        items += page.items
        cursor = page.next_cursor
        if cursor is None or not page.items:
            break
    series = series_of_rollouts(items[::-1])
    chosen = {name: each for name, each in series.items() if not wanted or name in wanted}
    start = items[-1].end_time if items else None
    return Curves(run, list(series), list(series), start, chosen)


def series_of_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Series]:
    """Return `reward` and `rollouts_per_second` of finished rollouts, the first to finish first."""
    ended = [(each.end_time, each.reward) for each in rollouts if each.end_time is not None]
    if not ended:
        return {}
    start = min(end for end, _ in ended)
    rewards = [(end, reward) for end, reward in ended if reward is not None]
    found = {}
    if rewards:
        reward = Series("seconds", *map(list, zip(*((end - start, end, value) for end, value in rewards), strict=True)))
        found["reward"] = reward.thinned(MAX_POINTS)
    found["rollouts_per_second"] = _rate([end for end, _ in ended], start)
    return found


def _rate(ends: Sequence[float], start: float) -> Series:
    """Return the number of rollouts finished per second, in intervals of equal length."""
    width = max((max(ends) - start) / RATE_POINTS, 0.1)
    counts = [0] * (int((max(ends) - start) / width) + 1)
    for end in ends:
        counts[int((end - start) / width)] += 1
    if len(counts) > 1:
        counts.pop()  # the last interval is not over
    steps = [(place + 0.5) * width for place in range(len(counts))]
    return Series("seconds", steps, [start + step for step in steps], [count / width for count in counts])
