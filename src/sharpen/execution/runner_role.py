"""What a child does as a runner: it unpacks the bundle and runs it against the store."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

from ..process.parent import Job, Parent
from ..runner import RunnerWornOut, worker_name
from ..runner.bundle import unpack
from ..store.client import connected
from . import forks
from .events import RunnerEvent
from .jobs import RunnerJob
from .lives import EXIT_WORN_OUT
from .loops import run_to_end
from .runner_environment import prepare_for_agents


def run(parent: Parent, job: Job) -> int:
    """Run the bundle to its end, and return the exit code."""
    options = RunnerJob(**job.options)
    job.context.apply(f"runner {options.worker_id}")
    prepare_for_agents()
    bundle = unpack(job.payload)
    _send(parent, ready=worker_name(options.worker_id))
    event = RunnerEvent(
        options.finished_before,
        stop=parent.stop_requested,
        tell=lambda count: _send(parent, finished=count, lossy=True),
        stop_requested=parent.is_stopping,
        alive=lambda lease: _send(parent, lease=lease, lossy=True),
    )
    signals = _Signals()
    try:
        run_to_end(_work(parent, bundle, options, event, signals))
    except RunnerWornOut:
        return EXIT_WORN_OUT
    except asyncio.CancelledError:
        return 0 if event.is_set() or not signals.received else 128 + signals.received
    _send(parent, done=True)
    return 0


def _send(parent: Parent, *, lossy: bool = False, **message: Any) -> None:
    parent.send(json.dumps(message).encode(), lossy=lossy)


class _Signals:
    """SIGINT and SIGTERM cancel the bundle, which then hands its rollouts back."""

    def __init__(self) -> None:
        self.received = 0

    def cancel(self, task: "asyncio.Task[Any]") -> None:
        loop = asyncio.get_running_loop()
        forks.begin({number: signal.getsignal(number) for number in forks.SIGNALS})
        for number in forks.SIGNALS:
            loop.add_signal_handler(number, self._receive, number, task)

    def _receive(self, number: int, task: "asyncio.Task[Any]") -> None:
        self.received = number
        task.cancel()


async def _work(parent: Parent, bundle: Any, job: RunnerJob, event: RunnerEvent, signals: _Signals) -> None:
    task = asyncio.current_task()
    assert task is not None
    signals.cancel(task)
    token_file = None if job.token_file is None else Path(job.token_file)
    async with connected(job.url, job.token, token_file=token_file, **job.client) as store:
        # Its server may have been in the parent: what is finished goes to the spool while there is time.
        parent.on_gone = store.stop_waiting
        if parent.is_gone:
            store.stop_waiting()
        await bundle(store, job.worker_id, event)
