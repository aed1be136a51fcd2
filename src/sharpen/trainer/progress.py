"""Progress: what people see of a run, and its metrics over time.

A thread with an event loop of its own asks the store every second or so: one question for the counts, one for what
has finished since. In a terminal one line is kept up to date; elsewhere plain lines come now and then. Where the
variables of OpenTelemetry name a collector, the metrics go there as well.
"""

import asyncio
import contextlib
import functools
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..algorithm.base import is_gateway
from ..algorithm.rewards import Rewards, with_last_attempt
from ..errors import StoreError
from ..files import append_json, read_json, write_json
from ..runs.folder import METRICS, FullDisk
from ..runs.screen import is_terminal, say, screen, show
from ..store import LightningStore
from .gateway import RunGateway, summary
from .status import open_rollouts

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from rich.live import Live

    from .algorithm_bundle import RunPlan

log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
PLAIN_SECONDS = 5.0
METRICS_SECONDS = 5.0
RATE_SECONDS = 10.0
LOOK_SECONDS = 10.0
PAGE = 200
SKIP_PAGE = 10_000
COUNTED = "checkpoints/progress.json"  # in the folder of a run: what it has counted
BEGINNING = "checkpoints/beginning.json"  # in folders of version 0.1: from where to count
COLLECTOR_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
COLLECT_SECONDS = 5.0
LAST_COLLECT_SECONDS = 5.0  # a collector that does not answer must not hold up the end of a run


class _Counted(msgspec.Struct):
    """What a run has counted by now."""

    after: int = 0
    """The place in the store's list of finished rollouts up to which they are counted."""
    last: str | None = None
    """The rollout that was counted last."""
    rewards: Rewards = msgspec.field(default_factory=Rewards)


class Progress:
    """Asks the store, counts, and says what it sees, from `async with` to its end. `place` says in a few words where
    the algorithm is."""

    def __init__(
        self,
        store: LightningStore,
        plan: "RunPlan",
        gateway: RunGateway | None = None,
        place: Callable[[], str] = str,
    ) -> None:
        self.plan, self._place = plan, place
        self._store, self._gateway = store, gateway or RunGateway(None, plan.run_dir)
        self._thread = threading.Thread(target=self._run, name="sharpen-progress", daemon=True)
        self._stop = threading.Event()
        self._counted, self._numbers = _Counted(), dict.fromkeys(("queued", "running", "done", "failed"), 0)
        self._llm: dict[str, float] = {}
        self._disk = FullDisk("progress")
        self._next_warning, self._next_metrics = plan.stall_seconds, 0.0
        self._counts: deque[tuple[float, int]] = deque()
        self._collector = open_collector(plan.run_dir)

    async def __aenter__(self) -> "Progress":
        """What earlier runs left in the store is not ours; a resumed run continues from what it has counted."""
        if self.plan.is_resumed:
            paths = (self.plan.run_dir / COUNTED, self.plan.run_dir / BEGINNING)
            if (path := next(filter(Path.exists, paths), None)) is not None:
                self._counted = msgspec.convert(read_json(path), _Counted)
            last = self._counted.last
            if last is not None and await self._store.get_rollout_by_id(last) is None:
                self._counted.after = 0  # a store in memory is empty after a resume, and counts from zero
        await self._take_finished(is_counted=self.plan.is_resumed)
        with self._disk.tolerated(self.plan.run_dir):
            self._keep()
        self._began = self._last_finish = time.monotonic()
        self._counts.append((self._began, self._counted.rewards.all.count))
        self._thread.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stop.set()
        await asyncio.shield(asyncio.to_thread(self._thread.join))

    # -- what has finished ---------------------------------------------------------------------------

    def _keep(self) -> None:
        if (path := self.plan.run_dir / COUNTED).parent.is_dir():
            write_json(path, self._counted)

    async def _take_finished(self, *, is_counted: bool = True) -> None:
        page, limit = None, PAGE if is_counted else SKIP_PAGE
        while page is None or len(page.items) == limit:
            page = await self._store.finished_rollouts(after=self._counted.after, limit=limit)
            # All of the page or, when time runs out in between, nothing of it: nothing is counted twice.
            for rollout in [await with_last_attempt(self._store, each) for each in page.items if is_counted]:
                self._counted.rewards.add(rollout)
                self._counted.last = rollout.rollout_id
                self._last_finish, self._next_warning = time.monotonic(), self.plan.stall_seconds
            self._counted.after = page.cursor

    # -- its thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner, contextlib.closing(_LiveLine() if is_terminal() else _Line()) as line:
                is_last, pause = False, 0.0
                while not is_last:
                    is_last, pause = self._stop.wait(pause), PAUSE_SECONDS
                    runner.run(self._follow(line, is_last=is_last))
            self._conclude()
        except Exception:  # whoever only watches must not end a run
            log.exception("the progress display failed and is switched off")

    async def _follow(self, line: "_Line", *, is_last: bool) -> None:
        try:
            await asyncio.wait_for(self._look(), LOOK_SECONDS)
        except (StoreError, TimeoutError) as error:
            log.debug("could not read progress: %s", error)
            return
        line.show(self._text(), is_last=is_last)
        self._write_metrics(is_last=is_last)
        await self._warn_of_stall()

    def _conclude(self) -> None:
        """The table at the end, and where the records are."""
        if self._collector is not None:
            self._collector.close()
        if self.plan.shows_table and self._counted.rewards.all.count:
            show(self._counted.rewards.table("rollouts"))
        if self._llm:
            say("; ".join(filter(None, (summary(self._llm), self._gateway.notice))))
        say(f"records: {self.plan.run_dir}")

    async def _look(self) -> None:
        statistics = await self._store.statistics()
        self._llm = await self._gateway.metrics() or self._llm
        await self._take_finished()
        by_status, total, now = statistics["rollouts_by_status"], self._counted.rewards.all, time.monotonic()
        running = by_status.get("preparing", 0) + by_status.get("running", 0)
        counted = {"done": total.succeeded, "failed": total.failed}
        self._numbers = {"queued": statistics["queue_length"], "running": running, **counted}
        self._counts.append((now, total.count))
        while len(self._counts) > 2 and self._counts[1][0] < now - RATE_SECONDS:
            self._counts.popleft()

    # -- what it says --------------------------------------------------------------------------------

    def _rate(self) -> float:
        """Rollouts a second over the last ten."""
        (then, count), (now, count_now) = self._counts[0], self._counts[-1]
        return (count_now - count) / max(now - then, 1e-3)

    def _text(self) -> str:
        """Where the algorithm is, the counts, the mean reward so far (one number, or one of each mode), the rate."""
        rewards = self._counted.rewards
        counts = {**self._numbers, **({"lost": rewards.all.lost} if rewards.all.lost else {})}
        by_mode = rewards.by_mode if len(rewards.by_mode) > 1 else {"": rewards.all}
        means = [f"{mode} reward {'-' if one.mean is None else f'{one.mean:.3f}'}" for mode, one in by_mode.items()]
        said = [self._place(), *(f"{name} {number}" for name, number in counts.items()), *map(str.lstrip, means)]
        return "  ".join(filter(None, [*said, f"{self._rate():.1f} rollouts/s", self._gateway.notice]))

    def _write_metrics(self, *, is_last: bool) -> None:
        now = time.monotonic()
        if now < self._next_metrics and not is_last:
            return
        self._next_metrics = now + METRICS_SECONDS
        seconds, rewards = self.plan.earlier_seconds + now - self._began, self._counted.rewards
        rate = rewards.all.count / seconds if is_last else self._rate()
        metrics = {"seconds": seconds, "rollouts_per_second": rate, **self._numbers, **rewards.metrics(), **self._llm}
        with self._disk.tolerated(self.plan.run_dir):
            append_json(self.plan.run_dir / METRICS, {"time": time.time(), **metrics}, is_private=True)
            self._keep()
        if self._collector is not None:
            self._collector.record(metrics)

    async def _warn_of_stall(self) -> None:
        """Say it when nothing finishes although there is work; again with growing pauses."""
        quiet = time.monotonic() - self._last_finish
        if not self._numbers["queued"] + self._numbers["running"]:
            self._last_finish = time.monotonic()  # waiting for the algorithm is no stall
        elif quiet >= self._next_warning:
            self._next_warning *= 2
            log.warning("nothing has finished for %.0f s: %s", quiet, "; ".join(await self._what_is_in_hand()))

    async def _what_is_in_hand(self) -> list[str]:
        in_flight, held = await self._gateway.open_calls()
        said = [f"{self._numbers['queued']} rollouts queued, {self._numbers['running']} running"]
        said += [f"{in_flight} calls are waiting for the model"] if in_flight else []
        said += [f"{held} calls are held until the model is ready"] if held else []
        in_hand = await open_rollouts(self._store, time.time(), limit=5)
        if in_hand:
            return said + [str(each) for each in in_hand]
        workers = [each for each in await self._store.query_workers() if not is_gateway(each)]
        alive = [worker.worker_id for worker in workers if (worker.last_heartbeat_time or 0) > time.time() - 60]
        idle = f"idle workers: {', '.join(alive[:5])}"
        return [*said, idle if alive else "no heartbeat from any runner in the last minute"]


# -- the line ----------------------------------------------------------------------------------------


class _Line:
    """Plain lines: one when something has changed, at most every few seconds, and one at the end."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1.0
        self._shown = ""

    def show(self, text: str, *, is_last: bool) -> None:
        if text == self._shown or (time.monotonic() < self._next and not is_last):
            return
        self._shown, self._next = text, time.monotonic() + PLAIN_SECONDS
        say(text)

    def close(self) -> None:
        """A plain line leaves nothing open."""


class _LiveLine(_Line):
    """One line of a terminal, kept up to date; what others print appears above it. A debugger ends it: the prompt
    of one must not be written over."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._is_debugging = False
        self._breakpointhook, sys.breakpointhook = sys.breakpointhook, self._debug

    def close(self) -> None:
        if sys.breakpointhook == self._debug:
            sys.breakpointhook = self._breakpointhook
        self._end_live()

    def _debug(self, *args: Any, **kwargs: Any) -> Any:
        self._is_debugging = True
        self._end_live()
        is_plain = self._breakpointhook is sys.__breakpointhook__ and not args and not kwargs
        if is_plain and os.environ.get("PYTHONBREAKPOINT", "") in ("", "pdb.set_trace"):
            from pdb import Pdb

            Pdb().set_trace(sys._getframe().f_back)  # where `breakpoint()` stands, not here
            return None
        return self._breakpointhook(*args, **kwargs)

    def _end_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def show(self, text: str, *, is_last: bool) -> None:
        from rich.live import Live
        from rich.text import Text

        if is_last:
            self._end_live()
            show(Text(text))
        elif not self._is_debugging:
            if self._live is None:
                # Standard output may be a file: what goes there must not land on the screen.
                is_shared = sys.stdout is not None and sys.stdout.isatty()
                self._live = Live("", console=screen(), auto_refresh=False, transient=True, redirect_stdout=is_shared)
                self._live.start()
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


# -- the collector -----------------------------------------------------------------------------------


def open_collector(run_dir: Path) -> "MetricsCollector | None":
    """The way to the collector; None where there is none. A missing package is a warning that holds the command."""
    variable = next((name for name in COLLECTOR_VARIABLES if os.environ.get(name)), None)
    if variable is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        log.warning("%s is set, but exporting metrics needs another package: pip install 'sharpen[otel]'", variable)
        return None
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=COLLECT_SECONDS * 1000)
    return MetricsCollector(MeterProvider([reader], shutdown_on_exit=False), run_dir)


class MetricsCollector:
    """Every metric is a gauge, `sharpen.<name>`, with the folder of the run as its attribute."""

    def __init__(self, provider: "MeterProvider", run_dir: Path) -> None:
        self._provider, self._attributes = provider, {"sharpen.run": str(run_dir)}
        self._gauge = functools.cache(provider.get_meter("sharpen").create_gauge)

    def record(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float):
                self._gauge(f"sharpen.{name.replace('/', '.')}").set(value, self._attributes)

    def close(self) -> None:
        """Send the last values."""
        self._provider.shutdown(timeout_millis=LAST_COLLECT_SECONDS * 1000)
