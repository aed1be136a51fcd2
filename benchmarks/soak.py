"""Load on a store server for a long time: its memory, open files and threads must stay flat.

    make soak                        or:  python benchmarks/soak.py --minutes 30

A server process on SQLite and two worker processes run rollouts without a pause; old ones are pruned. The processes
are looked at every few seconds, and the last quarter is compared with the second one, when all is warm. One JSON line
at the end; the exit status says whether everything stayed flat.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sharpen import EnqueueRolloutRequest, LightningStoreClient, Span

SAMPLE_SECONDS = 2.0
ALLOWED_GROWTH = {"rss_mb": 1.10, "files": 1.0, "threads": 1.0}
ALLOWED_STEP = {"rss_mb": 4.0, "files": 3.0, "threads": 2.0}

Sample = dict[str, float]


def look_at(pid: int) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "rss_mb": int(fields["VmRSS"].split()[0]) / 1024,
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(fields["Threads"]),
    }


async def work(url: str) -> None:
    """Claim, add spans, complete, until the parent says stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = LightningStoreClient(url)
    while not stop.is_set():
        claimed = await store.dequeue_many_rollouts(limit=16, worker_id=f"worker-{os.getpid()}", wait_seconds=1)
        await asyncio.gather(*(finish(store, rollout.rollout_id, rollout.attempt.attempt_id) for rollout in claimed))
    await store.close()


async def finish(store: LightningStoreClient, rollout_id: str, attempt_id: str) -> None:
    spans = [
        Span.from_attributes(attributes={"text": "x" * 500}, rollout_id=rollout_id, attempt_id=attempt_id)
        for _ in range(4)
    ]
    await store.add_many_spans(spans[:2])
    await store.complete_attempt(rollout_id, attempt_id, spans=spans[2:], status="succeeded", reward=1.0)


async def load(url: str, pids: dict[str, int], minutes: float) -> tuple[dict[str, list[Sample]], int]:
    """Keep the queue filled and follow the completions, while the processes are looked at."""
    store, samples, done, cursor = LightningStoreClient(url), {name: list[Sample]() for name in pids}, 0, 0
    end, next_look = time.monotonic() + minutes * 60, 0.0
    while time.monotonic() < end:
        if (await store.statistics())["queue_length"] < 500:
            await store.enqueue_many_rollouts([EnqueueRolloutRequest({"n": n}, mode="train") for n in range(1000)])
        page = await store.finished_rollouts(after=cursor, limit=1000, wait_seconds=1)
        cursor, done = page.cursor, done + len(page.items)
        await store.update_worker("observer", {"done": done})
        await store.query_rollouts(status_in=["succeeded"], limit=50, sort_order="desc")
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + SAMPLE_SECONDS
            for name, pid in pids.items():
                samples[name].append(look_at(pid))
            await store.prune(older_than=20)
    await store.close()
    return samples, done


def growth(samples: list[Sample]) -> dict[str, dict[str, float | bool]]:
    """The last quarter against the second one."""
    quarter = max(len(samples) // 4, 1)
    report: dict[str, dict[str, float | bool]] = {}
    for name, most in ALLOWED_GROWTH.items():
        before = statistics.median(sample[name] for sample in samples[quarter : 2 * quarter])
        after = statistics.median(sample[name] for sample in samples[-quarter:])
        is_flat = after <= max(before * most, before + ALLOWED_STEP[name])
        report[name] = {"before": round(before, 1), "after": round(after, 1), "flat": is_flat}
    return report


def run(minutes: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sharpen.store", f"{folder}/store.db"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        workers = [subprocess.Popen([sys.executable, __file__, "--as-worker", url]) for _ in range(2)]
        try:
            pids = {"server": server.pid} | {f"worker-{n}": worker.pid for n, worker in enumerate(workers)}
            samples, done = asyncio.run(load(url, pids, minutes))
        finally:
            processes: list[subprocess.Popen[Any]] = [*workers, server]
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
    report = {name: growth(each) for name, each in samples.items()}
    is_flat = all(figure["flat"] for each in report.values() for figure in each.values())
    print(json.dumps({"measure": "soak", "minutes": minutes, "rollouts": done, "processes": report, "flat": is_flat}))
    return is_flat


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_worker:
        asyncio.run(work(arguments.as_worker))
    else:
        sys.exit(0 if run(arguments.minutes) else 1)


if __name__ == "__main__":
    main()
