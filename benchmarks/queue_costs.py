"""What each operation on a store costs, and whether the simulator's prediction from that holds; one JSON line each.

    python benchmarks/queue_costs.py                             # SQLite and PostgreSQL, each behind one store server
    python benchmarks/queue_costs.py --stores sqlite --no-check
    python benchmarks/queue_costs.py --write                     # keep the costs in results/costs.json

One client repeats each operation alone. What is taken is CPU time (of this process, of the store server, of all
processes of the database), not the time on the clock, so other programs disturb little. The time on the clock that no
part accounts for (wake-ups of processes, the loopback) becomes the latency of the check.
The check: 8 and 64 runners whose agents sleep, each a process on this machine, beside a simulation of the same
with the costs that were just measured; nothing is fitted to it.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from typing import Any

import postgres_commits
from databases import Database, children, cpu_seconds
from line_process import Figures, LineProcess, processes
from queue_plan import COSTS, Cost, Costs, Plan
from queue_simulator import simulate
from scale import Places
from scale_clients import claim, fill, finish_and_claim
from scale_stores import open_store, served

from sharpen.types import AttemptedRollout, EnqueueRolloutRequest

PASSES, WARM_UP_SECONDS = 3, 1.0
CHECKS = ((8, 0.0), (8, 0.05), (64, 0.0), (64, 0.05), (64, 0.25))
WRITES_BYTES = 64  # of the log for one operation; what writes less is not synced


class Meter:
    """CPU of the three parts, the clock, and the log of the database."""

    def __init__(self, server: LineProcess, database: Database | None, url: str) -> None:
        self._server, self._database, self._url = server, database, url

    def read(self) -> dict[str, float]:
        database = 0.0 if self._database is None else self._database.cpu_seconds()
        return {
            "client": time.process_time(), "server": cpu_seconds(self._server.pid), "database": database,
            "clock": time.perf_counter(), "log": self._log_bytes(),
        }  # fmt: skip

    def _log_bytes(self) -> float:
        return self._asked("SELECT pg_current_wal_lsn() - '0/0'") if self._url.startswith("postgresql") else 0.0

    def _asked(self, question: str) -> float:
        import psycopg

        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(question.encode()).fetchone()
        return float(row[0]) if row else 0.0

    def size_bytes(self) -> float:
        """What the store takes: on the disk, or in the memory of Redis."""
        if self._url.startswith("postgresql"):
            return self._asked("SELECT pg_database_size(current_database())")
        if self._url.startswith("redis"):
            import redis

            return float(redis.Redis.from_url(self._url).info("memory")["used_memory"])
        with contextlib.closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as connection:
            pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return float(pages * size)


async def repeated(meter: Meter, operation: Callable[[], Awaitable[object]], seconds: float) -> dict[str, float]:
    """What one of them takes, over many of them."""
    for _ in range(20):
        await operation()
    before, done, end = meter.read(), 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        await operation()
        done += 1
    after = meter.read()
    return {name: (after[name] - before[name]) / done for name in before}


class Operations:
    """The operations of a run, by one client."""

    def __init__(self, url: str) -> None:
        self.store, self._other = open_store(url), open_store(url)
        self._rollout: AttemptedRollout

    async def enqueue_many(self) -> None:
        await fill(self.store, 50)

    async def enqueue_one(self) -> None:
        await self.store.enqueue_many_rollouts([EnqueueRolloutRequest({"q": 1}, mode="train")])

    async def turn(self, spans: int = 3) -> None:
        self._rollout = await finish_and_claim(self.store, self._rollout, "worker-0", spans)

    async def turn_of_13(self) -> None:
        await self.turn(13)

    async def begin(self) -> None:
        self._rollout = await claim(self.store, "worker-0")

    async def empty(self) -> None:
        """By a worker that nobody hears of again: a heartbeat costs more the more rollouts its worker has in hand."""
        while await self.store.dequeue_many_rollouts(limit=1_000, worker_id="drain"):
            pass

    async def poll(self) -> None:
        await self.store.dequeue_many_rollouts(worker_id="drain", wait_seconds=0.001)

    async def woken(self) -> None:
        """Somebody waits, and is woken by an item."""
        waiting = asyncio.ensure_future(self._other.dequeue_rollout(worker_id="drain", wait_seconds=5))
        await asyncio.sleep(0.003)
        await self.enqueue_one()
        await waiting

    async def heartbeat(self) -> None:
        await self.store.update_worker("worker-0", {"cpu": 1.0})

    async def close(self) -> None:
        await self.store.close()
        await self._other.close()


async def measure(meter: Meter, url: str, seconds: float) -> Figures:
    """Every operation by itself, medians of several passes over all of them; and the bytes that a rollout leaves."""
    operations, passes = Operations(url), list[dict[str, dict[str, float]]]()
    try:
        for _ in range(PASSES):
            passes.append(await _pass(meter, operations, seconds / PASSES))
        await fill(operations.store, 1)
        await operations.begin()
        bytes_of_turn, bytes_of_span = await _bytes(meter, operations)
    finally:
        await operations.close()
    found: Figures = {
        name: {part: statistics.median(each[name][part] for each in passes) for part in parts}
        for name, parts in passes[0].items()
    }
    return found | {"bytes_of_turn": bytes_of_turn, "bytes_of_span": bytes_of_span}


async def _pass(meter: Meter, operations: Operations, seconds: float) -> dict[str, dict[str, float]]:
    found = {}
    await fill(operations.store, int(seconds * 4_000))
    found["enqueue"] = _divided(await repeated(meter, operations.enqueue_many, seconds), 50)
    await operations.begin()
    found["turn"] = await repeated(meter, operations.turn, seconds)
    found["turn_of_13"] = await repeated(meter, operations.turn_of_13, seconds)
    found["heartbeat"] = await repeated(meter, operations.heartbeat, seconds)
    await operations.empty()
    found["poll"] = await repeated(meter, operations.poll, seconds)
    found["enqueue_one"] = await repeated(meter, operations.enqueue_one, seconds)
    await operations.empty()
    found["woken"] = await repeated(meter, operations.woken, seconds)
    return found


async def _bytes(meter: Meter, operations: Operations, turns: int = 500) -> tuple[float, float]:
    """What a rollout of three spans, and a further span, add to the disk (Redis: to its memory)."""
    sizes = [meter.size_bytes()]
    for spans in (3, 13):
        await fill(operations.store, turns)
        for _ in range(turns):
            await operations.turn(spans)
        sizes.append(meter.size_bytes())
    of_3, of_13 = ((after - before) / turns for before, after in pairwise(sizes))
    return of_3, (of_13 - of_3) / 10


def _divided(values: dict[str, float], number: float) -> dict[str, float]:
    return {name: value / number for name, value in values.items()}


def costs_of(found: Figures, commit_seconds: float) -> Costs:
    """From what was measured to what the simulator takes."""

    def cost(name: str, *less: str, scale: float = 1.0) -> Cost:
        parts = (max(found[name][part] - sum(found[each][part] for each in less), 0.0) * scale for part in PARTS)
        client, server, database = parts
        return Cost(client, server, database, float(commit_seconds > 0 and found[name]["log"] > WRITES_BYTES))

    return Costs(
        enqueue=cost("enqueue"),
        turn=cost("turn"),
        poll=cost("poll"),
        wake=cost("woken", "enqueue_one", "poll"),
        heartbeat=cost("heartbeat"),
        span=dataclasses.replace(cost("turn_of_13", "turn", scale=0.1), commits=0.0),
        commit_seconds=commit_seconds,
    )


PARTS = ("client", "server", "database")


def sync_seconds(times: int = 200) -> float:
    """A sync of 8 kB to the disk where the databases lie, median."""
    took = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(times):
            file.write(b"x" * 8192)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def unaccounted(found: dict[str, float], commit_seconds: float) -> float:
    """Of the time on the clock, what neither computing nor the sync explains."""
    return max(found["clock"] - sum(found[part] for part in PARTS) - commit_seconds, 0.0)


# -- the check ---------------------------------------------------------------------------------------


def check(places: Places, kind: str, costs: Costs, latency: float, arguments: argparse.Namespace) -> Iterator[Figures]:
    demand = (costs.turn.client + costs.turn.server + costs.turn.database) * 1000
    for runners, agent_seconds in CHECKS:
        seen = [_turns(places, kind, runners, agent_seconds, arguments) for _ in range(arguments.rounds)]
        plan = Plan(
            runners, agent_seconds, dataclasses.replace(costs, heartbeat=Cost()), agent_shape="constant",
            machine_cores=os.cpu_count(), latency_seconds=latency, warm_up_seconds=2.0, seconds=10.0,
        )  # fmt: skip
        predicted = simulate(plan).rollouts_per_second
        median = statistics.median(rate for rate, _, _ in seen)
        yield {
            "check": f"{kind}: {runners} runners, agents of {agent_seconds * 1000:g} ms",
            "predicted": round(predicted, 1), "measured": median, "measured_all": [rate for rate, _, _ in seen],
            "error_percent": round((predicted / median - 1) * 100, 1),
            "cpu_ms_of_turn": round(demand, 3), "cpu_ms_measured": [cpu for _, cpu, _ in seen],
            "cores_got": [cores for _, _, cores in seen],
        }  # fmt: skip


def _turns(
    places: Places, kind: str, runners: int, agent_seconds: float, arguments: argparse.Namespace
) -> tuple[float, float, float]:
    """Turns a second, milliseconds of CPU for each in all processes, and the cores that these got."""
    seconds = arguments.seconds
    job = {"runners": runners, "agent_seconds": agent_seconds, "warm_up_seconds": WARM_UP_SECONDS, "seconds": seconds}
    with served(places.empty(kind)) as (address, server):
        asyncio.run(_fill(address, int((seconds + WARM_UP_SECONDS) * 2_500)))
        with processes("sleeping_runners.py", [job | {"url": address}]) as (running,):
            pids, database = [server.pid, running.pid, *children(running.pid)], places.database(kind)

            def cpu() -> float:
                return cpu_seconds(*pids) + (0.0 if database is None else database.cpu_seconds())

            before, began = cpu(), time.perf_counter()
            figures = running.ask()
            used, took = cpu() - before, time.perf_counter() - began
    return round(figures["done"] / seconds, 1), round(used / figures["all"] * 1000, 3), round(used / took, 2)


async def _fill(url: str, number: int) -> None:
    store = open_store(url)
    await fill(store, number)
    await store.close()


# -- the command -------------------------------------------------------------------------------------


def calibrate(places: Places, kind: str, seconds: float) -> Figures:
    url, database = places.empty(kind), places.database(kind)
    with served(url) as (address, server):
        found = asyncio.run(measure(Meter(server, database, url), address, seconds))
    commit = sync_seconds() if kind == "postgres" else 0.0
    costs = costs_of(found, commit)
    figures: dict[str, Any] = dataclasses.asdict(costs)
    figures["unaccounted_seconds"] = unaccounted(found["turn"], commit)
    figures["log_bytes"] = {name: round(each["log"]) for name, each in found.items() if isinstance(each, dict)}
    figures["clock_seconds"] = {name: each["clock"] for name, each in found.items() if isinstance(each, dict)}
    return figures | {"bytes_of_turn": round(found["bytes_of_turn"]), "bytes_of_span": round(found["bytes_of_span"])}


def rounded(value: Any) -> Any:
    """Seconds to a tenth of a microsecond."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return round(value, 7) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="sqlite,postgres", help="separated by commas; redis too")
    parser.add_argument("--seconds", type=float, default=1.2, help="of each operation, and of each round of the check")
    parser.add_argument("--rounds", type=int, default=2, help="of the check")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"keep the costs in {COSTS.name} for the simulator")
    arguments = parser.parse_args()
    kept = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    with contextlib.ExitStack() as stack:
        places = Places(stack)
        for kind in arguments.stores.split(","):
            figures = rounded(calibrate(places, kind, arguments.seconds))
            print(json.dumps({"costs": kind} | figures), flush=True)
            kept[kind] = figures
            if kind == "postgres":
                print(json.dumps(postgres_commits.measure(places.empty(kind))), flush=True)
            if not arguments.no_check:
                latency = figures["unaccounted_seconds"] / 2
                for each in check(places, kind, Costs.of(figures), latency, arguments):
                    print(json.dumps(each), flush=True)
    if arguments.write:
        COSTS.parent.mkdir(exist_ok=True)
        COSTS.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
