"""Whether looking at a run slows it down: claims of 8 clients at a store server, with and without viewers.

    python benchmarks/dashboard_claims.py                 # phases in turns, 3 rounds of 6 s each
    python benchmarks/dashboard_claims.py --seconds 3 --rounds 1

The server is `sharpen store serve` with its dashboard. Each client claims a rollout, works for 20 ms, and completes it
with a span. Viewers are a process of their own: one with the live page of the run (events, and the newest rollouts as
they finish), one who opens the rollout of 2,000 spans every second, and one who opens it without a pause. Prints one
JSON line per phase: the latency of claims in milliseconds, over all rounds.
"""

import argparse
import asyncio
import contextlib
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from dashboard_store import MANY_SPANS, generate

from sharpen import LightningStoreClient
from sharpen.types import EnqueueRolloutRequest, Span

SHARPEN = str(Path(sys.executable).parent / "sharpen")
CLIENTS, WORK_SECONDS = 8, 0.02
PHASES = ("nobody", "live page", "2,000 spans every second", "2,000 spans without a pause")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--view", nargs=2, metavar=("PHASE", "URL"), help="be the viewer of a phase, until killed")
    arguments = parser.parse_args()
    if arguments.view:
        _view(*arguments.view)
        return
    for line in measure(arguments.seconds, arguments.rounds):
        print(json.dumps(line), flush=True)


def measure(seconds: float, rounds: int) -> Iterator[dict[str, object]]:
    """The latency of claims in each phase."""
    claims: dict[str, list[float]] = {phase: [] for phase in PHASES}
    pages: dict[str, list[float]] = {phase: [] for phase in PHASES}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        generate(path, rollouts=20_000, spans=40_000)
        with _server(path) as url:
            for _ in range(rounds):
                for phase in PHASES:
                    with _viewer(phase, f"{url}/dashboard/runs/{path.name}") as seen:
                        claims[phase] += asyncio.run(_work(url, seconds))
                    pages[phase] += seen
    for phase in PHASES:
        yield {"measure": f"claims, viewed by: {phase}", **_summary(claims[phase], pages[phase], seconds * rounds)}


def _summary(claims: list[float], pages: list[float], seconds: float) -> dict[str, object]:
    cuts = statistics.quantiles(claims, n=100)
    found: dict[str, object] = {
        "claims_per_second": round(len(claims) / seconds),
        "p50_ms": round(cuts[49] * 1000, 2),
        "p90_ms": round(cuts[89] * 1000, 2),
        "p99_ms": round(cuts[98] * 1000, 2),
        "worst_ms": round(max(claims) * 1000, 1),
    }
    return found | ({"pages": len(pages), "page_median_ms": round(statistics.median(pages), 1)} if pages else {})


@contextlib.contextmanager
def _server(path: Path) -> Iterator[str]:
    command = [SHARPEN, "store", "serve", str(path), "--port", "0", "--no-token"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://[\w.:\[\]]+", process.stdout.readline())
        if found is None:
            raise SystemExit("the store server did not say where it is")
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


# -- the clients -------------------------------------------------------------------------------------


async def _work(url: str, seconds: float) -> list[float]:
    """Claim and complete for a while; how long each claim took."""
    clients = [LightningStoreClient(url) for _ in range(CLIENTS)]
    took: list[float] = []
    try:
        queued = [EnqueueRolloutRequest(input={"n": number}) for number in range(int(seconds / WORK_SECONDS) * CLIENTS)]
        await clients[0].enqueue_many_rollouts(queued)
        end = time.monotonic() + seconds
        await asyncio.gather(*(_client(client, f"w{n}", end, took) for n, client in enumerate(clients)))
    finally:
        for client in clients:
            await client.close()
    return took


async def _client(client: LightningStoreClient, worker_id: str, end: float, took: list[float]) -> None:
    while time.monotonic() < end:
        began = time.perf_counter()
        claimed = await client.dequeue_rollout(worker_id=worker_id)
        took.append(time.perf_counter() - began)
        assert claimed is not None, "the queue ran empty"
        await asyncio.sleep(WORK_SECONDS)
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        span = Span.from_attributes(
            attributes={"answer": "yes"}, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=1, name="agent"
        )
        await client.complete_attempt(rollout_id, attempt_id, spans=[span], reward=1.0)


# -- the viewers -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _viewer(phase: str, address: str) -> Iterator[list[float]]:
    """Look from a process of its own; the list has the milliseconds of each page afterwards."""
    seen: list[float] = []
    if phase == "nobody":
        yield seen
        return
    command = [sys.executable, __file__, "--view", phase, address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # the first page is the warm-up
        yield seen
    finally:
        process.terminate()
        seen += [float(line) for line in process.stdout.read().splitlines()]
        process.wait()


def _view(phase: str, address: str) -> None:
    if phase == "live page":
        threading.Thread(target=_follow, args=(f"{address}/events",), daemon=True).start()
    page, pause = {
        "live page": (f"{address}/newest", 1.0),
        "2,000 spans every second": (f"{address}/rollouts/{MANY_SPANS}", 1.0),
        "2,000 spans without a pause": (f"{address}/rollouts/{MANY_SPANS}", 0.0),
    }[phase]
    _get(address)
    while True:
        began = time.perf_counter()
        _get(page)
        print(round((time.perf_counter() - began) * 1000, 1), flush=True)
        time.sleep(pause)


def _follow(address: str) -> None:
    with urllib.request.urlopen(address, timeout=60) as events:
        for _ in events:
            pass


def _get(address: str) -> None:
    with urllib.request.urlopen(address, timeout=60) as answer:
        answer.read()


if __name__ == "__main__":
    main()
