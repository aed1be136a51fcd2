"""Live updates of pages, as server-sent events.

One watcher per run serves all its viewers, and only while there are any: once a second it reads the counts of the store
and the new lines of the metrics. Events are small: numbers, or a notice that something changed and should be fetched
again.

    stats      counts by status, the queue, rollouts per second over the last ten seconds
    metrics    new points: {"lines": [{"step": …, "time": …, "values": {…}}]}
    rollouts   the counts of rollouts changed
    workers    a worker came, went, or changed what it does
    state      {"state": …, "seconds": …} of the run, if it changed
    runs       the list of runs changed (at `/events`)
    log        the log has grown
    resync     too many changes to send: fetch everything again
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..archive.catalog import RunEntry
from ..archive.curves import MetricsTail, as_number, metrics_in
from ..errors import SharpenError
from ..store import LightningStore, LightningStoreStatistics
from .sources import Source

log = logging.getLogger(__name__)

QUICK_SECONDS, QUIET_SECONDS = 1.0, 5.0
LIST_SECONDS = 2.0
RATE_SECONDS = 10.0
KEPT_EVENTS = 64
MAX_VIEWERS = 256
MAX_WORKERS = 1000

Event = tuple[str, Any]


class Live:
    """The watchers of a source, one for each run with viewers; the name None is the list of runs."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._watchers: dict[str | None, _Watcher] = {}

    @property
    def watched(self) -> list[str | None]:
        return list(self._watchers)

    @property
    def is_full(self) -> bool:
        return sum(len(watcher.viewers) for watcher in self._watchers.values()) >= MAX_VIEWERS

    def follow(self, name: str | None) -> "Viewer":
        """Return a viewer of events from now on, until it is closed."""
        watcher = self._watchers.get(name)
        if watcher is None:
            look = _ListLook(self._source) if name is None else _RunLook(self._source, name)
            watcher = self._watchers[name] = _Watcher(look)
        return watcher.join(lambda viewer: self._leave(name, watcher, viewer))

    def _leave(self, name: str | None, watcher: "_Watcher", viewer: "Viewer") -> None:
        watcher.leave(viewer)
        if not watcher.viewers and self._watchers.get(name) is watcher:
            del self._watchers[name]


class Viewer:
    """The events that one viewer has not been sent yet. One that cannot keep up is told to fetch everything again."""

    def __init__(self, leave: "Callable[[Viewer], None]", has_looked: asyncio.Event) -> None:
        self._leave = leave
        self.has_looked = has_looked
        """Set after the first poll: only later changes are sent."""
        self._events: deque[Event] = deque()
        self._has_some = asyncio.Event()

    def close(self) -> None:
        self._leave(self)

    def put(self, events: list[Event]) -> None:
        self._events.extend(events)
        if len(self._events) > KEPT_EVENTS:
            self._events.clear()
            self._events.append(("resync", {}))
        if self._events:
            self._has_some.set()

    async def next(self) -> Event:
        while not self._events:
            self._has_some.clear()
            await self._has_some.wait()
        return self._events.popleft()


class _Watcher:
    """Polls for changes and sends them to all viewers."""

    def __init__(self, look: "_Look") -> None:
        self._look = look
        self.viewers: set[Viewer] = set()
        self._has_looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def join(self, leave: Callable[[Viewer], None]) -> Viewer:
        viewer = Viewer(leave, self._has_looked)
        viewer.put(self._look.known())
        self.viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self.viewers.discard(viewer)
        if not self.viewers and self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                events = await self._look.news()
            except (SharpenError, OSError) as error:
                log.debug("cannot watch for changes: %s", error)  # a store that cannot be reached may come back
                events = []
            except Exception:
                log.exception("cannot watch for changes")
                events = []
            for viewer in self.viewers:
                viewer.put(events)
            self._has_looked.set()  # after an error, too: viewers do not wait for a store that cannot be reached
            await asyncio.sleep(self._look.pause)


class _Look:
    """The known state of a run or of the list of runs, and its changes."""

    pause: float = QUICK_SECONDS

    def known(self) -> list[Event]:
        """Return the events that a later viewer needs first."""
        return []

    async def news(self) -> list[Event]:
        raise NotImplementedError


class _ListLook(_Look):
    """The list of runs."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen: list[tuple[Any, ...]] | None = None

    async def news(self) -> list[Event]:
        began = time.monotonic()
        runs = await asyncio.to_thread(self._source.runs)
        # Thousands of runs take a while to read: they are polled less often.
        self.pause = max(LIST_SECONDS, 10 * (time.monotonic() - began))
        seen = [(run.name, run.state, run.rollouts, run.reward) for run in runs]
        before, self._seen = self._seen, seen
        return [("runs", {"runs": len(runs)})] if before is not None and before != seen else []


class _RunLook(_Look):
    """One run: its state, its metrics, its log and, if it has one, its store."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name = source, name
        self._entry: RunEntry | None = None
        self._tail: MetricsTail | None = None
        self._restarts = 0
        self._log_size = -1
        self._has_looked = False
        self._store = _StoreLook()

    def known(self) -> list[Event]:
        return ([] if self._entry is None else [_state(self._entry)]) + self._store.known()

    async def news(self) -> list[Event]:
        events = await asyncio.to_thread(self._of_files) + await self._of_store()
        is_running = self._entry is not None and self._entry.is_running
        self.pause = QUICK_SECONDS if is_running or events else QUIET_SECONDS
        return events

    async def _of_store(self) -> list[Event]:
        if self._entry is None or not self._entry.has_store:
            return []
        try:
            return await self._store.news(await self._source.store(self._name))
        except (SharpenError, OSError) as error:
            # What was read from the files would be lost otherwise.
            log.debug("cannot read statistics from the store of run %r: %s", self._name, error)
            return []

    def _of_files(self) -> list[Event]:
        before, self._entry = self._entry, self._source.entry(self._name)
        is_new = before is None or before.state != self._entry.state
        events = ([_state(self._entry)] if is_new else []) + self._of_metrics() + self._of_log()
        self._has_looked = True
        return events

    def _of_metrics(self) -> list[Event]:
        path = None if self._entry is None else self._entry.metrics_path
        if path is None:
            return []
        if self._tail is None:
            # The page fetches everything from before the first poll.
            self._tail = MetricsTail(path, at_end=not self._has_looked)
        lines = [_point(line) for line in self._tail.new_lines()]
        if self._tail.restarts != self._restarts:
            self._restarts = self._tail.restarts
            return [("resync", {})]
        known = [line for line in lines if line["values"]]
        return [("metrics", {"lines": known})] if known else []

    def _of_log(self) -> list[Event]:
        path = None if self._entry is None else self._entry.log_path
        size = 0 if path is None else _size(path)
        before, self._log_size = self._log_size, size
        return [("log", {"size_bytes": size})] if before not in (-1, size) else []


class _StoreLook:
    """The counts of a store and its workers."""

    def __init__(self) -> None:
        self._finished: deque[tuple[float, int]] = deque()
        self._stats: dict[str, Any] | None = None
        self._workers: set[tuple[Any, ...]] | None = None

    def known(self) -> list[Event]:
        return [] if self._stats is None else [("stats", self._stats)]

    async def news(self, store: LightningStore) -> list[Event]:
        return await self._counts(store) + await self._of_workers(store)

    async def _counts(self, store: LightningStore) -> list[Event]:
        found = statistics_for_page(await store.statistics())
        found["rollouts_per_second"] = self._rate(found["finished"])
        before, self._stats = self._stats, found
        if found == before:
            return []
        is_other = before is None or before["by_status"] != found["by_status"]
        return [("stats", found)] + ([("rollouts", {"finished": found["finished"]})] if before and is_other else [])

    def _rate(self, finished: int) -> float:
        now = time.monotonic()
        self._finished.append((now, finished))
        while len(self._finished) > 2 and self._finished[1][0] < now - RATE_SECONDS:
            self._finished.popleft()
        then, count = self._finished[0]
        return round((finished - count) / (now - then), 3) if now > then else 0.0

    async def _of_workers(self, store: LightningStore) -> list[Event]:
        workers = await store.query_workers(limit=MAX_WORKERS)
        seen = {(worker.worker_id, worker.status, worker.current_rollout_id) for worker in workers}
        before, self._workers = self._workers, seen
        return [("workers", {"workers": len(seen)})] if before is not None and before != seen else []


def statistics_for_page(statistics: LightningStoreStatistics) -> dict[str, Any]:
    """Return the counts of a store as pages show them."""
    by_status = statistics["rollouts_by_status"]
    return {
        "total": statistics["total_rollouts"],
        "by_status": by_status,
        "queued": statistics["queue_length"],
        "running": by_status.get("running", 0) + by_status.get("preparing", 0),
        "finished": sum(by_status.get(status, 0) for status in ("succeeded", "failed", "cancelled")),
        "attempts": statistics["total_attempts"],
        "spans": statistics["total_spans"],
        "workers": statistics["total_workers"],
        "size_bytes": statistics["size_bytes"],
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # removed since it was found


def _state(entry: RunEntry) -> Event:
    return "state", {"state": entry.state, "seconds": entry.seconds}


def _point(line: dict[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in metrics_in(line).items() if abs(value) < float("inf")}
    return {"step": as_number(line.get("step")), "time": as_number(line.get("time")), "values": values}


def encoded(event: Event) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (event[0].encode(), msgspec.json.encode(event[1]))
