"""A small data set goes through a durable store; a toy agent works on it in several processes.

    make demo          or:  python examples/demo.py [--tasks 200] [--workers 3]

The store is one SQLite file, served from this process. One worker is killed with SIGKILL on the way: its rollouts
are tried again by the others, and every rollout completes exactly once. The agent adds two numbers and is right
most of the time; its reward is 1 or 0.
"""

import argparse
import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from sharpen import (
    EnqueueRolloutRequest,
    LightningStoreClient,
    LightningStoreServer,
    PromptTemplate,
    RolloutConfig,
    Span,
    SQLiteStore,
)

console = Console()
RETRIED = RolloutConfig(unresponsive_seconds=2, max_attempts=5, retry_condition=["unresponsive"])


async def toy_agent(task: dict[str, int], prompt: str) -> tuple[str, float]:
    """Thinks for a moment, is wrong in one case of five."""
    await asyncio.sleep(random.uniform(0.02, 0.06))
    right = task["a"] + task["b"]
    said = right if random.random() < 0.8 else right + 1
    return f"{prompt} {said}", float(said == right)


async def work(url: str, token: str, worker_id: str) -> None:
    """A worker: claim, run the agent, report, until nothing has come for a while."""
    store = LightningStoreClient(url, token=token)
    await store.update_worker(worker_id)
    while rollout := await store.dequeue_rollout(worker_id=worker_id, wait_seconds=20):
        assert rollout.resources_id is not None
        resources = await store.get_resources_by_id(rollout.resources_id, rollout.resources_version)
        assert resources is not None
        template = resources.resources["prompt"]
        assert isinstance(template, PromptTemplate)
        answer, reward = await toy_agent(rollout.input, template.format(**rollout.input))
        attempt = rollout.attempt
        span = Span.from_attributes(
            attributes={"answer": answer, "sharpen.reward.0.name": "primary", "sharpen.reward.0.value": reward},
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            name="toy_agent",
        )
        await store.complete_attempt(rollout.rollout_id, attempt.attempt_id, spans=[span], status="succeeded")
    await store.close()


def start_worker(number: int, url: str, token: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--as-worker", f"worker-{number}", "--url", url]
    return subprocess.Popen(command, env={**os.environ, "SHARPEN_TOKEN": token})


async def follow(store: SQLiteStore, total: int, victim: subprocess.Popen[bytes]) -> None:
    """Show progress from the cursor of finished rollouts; kill one worker on the way."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"))
    cursor, done, rewards, started, next_line = 0, 0, 0.0, time.monotonic(), 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("rollouts", total=total, state="")
        while done < total:
            page = await store.finished_rollouts(after=cursor, wait_seconds=1)
            cursor, done = page.cursor, done + len(page.items)
            rewards += sum(rollout.reward or 0 for rollout in page.items)
            state = f"mean reward {rewards / max(done, 1):.2f}, {done / (time.monotonic() - started):.0f} rollouts/s"
            progress.update(bar, completed=done, state=state)
            if not console.is_terminal and done >= next_line:
                console.print(f"rollouts {done}/{total}  {state}")
                next_line = done + total // 4
            if done > total // 3 and victim.poll() is None:
                await kill_at_work(store, victim)


async def kill_at_work(store: SQLiteStore, victim: subprocess.Popen[bytes]) -> None:
    """Kill the worker while it has a rollout in hand: hold it still, look, and let it go on if it has none."""
    victim.send_signal(signal.SIGSTOP)
    await asyncio.sleep(0.1)
    worker = await store.get_worker_by_id("worker-0")
    if worker is not None and worker.status == "busy":
        victim.kill()
        victim.wait()
        console.print(f"worker-0 (process {victim.pid}) killed with SIGKILL, with a rollout in hand")
    else:
        victim.send_signal(signal.SIGCONT)


async def show(store: SQLiteStore) -> None:
    table = Table(title="what every worker did")
    for column in ("worker", "completed", "lost", "mean reward"):
        table.add_column(column, justify="left" if column == "worker" else "right")
    completed, lost, rewards = Counter[str](), Counter[str](), Counter[str]()
    for rollout in await store.query_rollouts():
        for attempt in await store.query_attempts(rollout.rollout_id):
            name = attempt.worker_id or "?"
            (completed if attempt.status == "succeeded" else lost)[name] += 1
            if attempt.status == "succeeded":
                rewards[name] += int(rollout.reward or 0)
    for name in sorted(completed | lost):
        mean = f"{rewards[name] / completed[name]:.2f}" if completed[name] else "-"
        table.add_row(name, str(completed[name]), str(lost[name]), mean)
    console.print(table)


async def enqueue(store: SQLiteStore, tasks: int) -> None:
    await store.add_resources({"prompt": PromptTemplate("{a} + {b} =")})
    numbers = [{"a": random.randrange(100), "b": random.randrange(100)} for _ in range(tasks)]
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(pair, mode="train", config=RETRIED) for pair in numbers])


async def wait_for_workers(store: SQLiteStore, processes: list[subprocess.Popen[bytes]]) -> None:
    while len(await store.query_workers()) < len(processes):
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("a worker ended before it began; its error is above")
        await asyncio.sleep(0.05)


async def run(tasks: int, workers: int) -> None:
    folder = Path(os.environ.get("SHARPEN_RUNS", "runs")) / time.strftime("demo-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    store, token = SQLiteStore(folder / "store.db"), secrets.token_urlsafe(24)
    server = LightningStoreServer(store, token=token)
    await server.start()
    processes = [start_worker(number, server.endpoint, token) for number in range(workers)]
    try:
        await wait_for_workers(store, processes)
        await enqueue(store, tasks)
        console.print(f"{tasks} tasks in {folder / 'store.db'}, served at {server.endpoint} to {workers} workers")
        await follow(store, tasks, processes[0])
        await show(store)
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        await server.stop()
        statistics = await store.statistics()
        await store.close()
    done = statistics["rollouts_by_status"]["succeeded"]
    console.print(f"{done} of {tasks} rollouts succeeded, {statistics['total_attempts']} attempts; records: {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_worker:
        asyncio.run(work(arguments.url, os.environ["SHARPEN_TOKEN"], arguments.as_worker))
    elif arguments.tasks < 1 or arguments.workers < 2:
        parser.error("give at least 1 task and 2 workers (one of them will be killed)")
    else:
        asyncio.run(run(arguments.tasks, arguments.workers))


if __name__ == "__main__":
    main()
