"""How fast the stores beyond one machine are, one JSON line per figure.

    python benchmarks/scale.py                                   # all of it, about 6 minutes
    python benchmarks/scale.py --only cycles,spans --stores postgres,sqlite
    python benchmarks/scale.py --only waiting --waiters 1000
    python benchmarks/scale.py --only ray

PostgreSQL (fsync on) and Redis (appendonly yes, synced every second) are started here, on loopback, with empty
databases. Clients are processes of their own. Each figure is the median of the rounds, which are all in the line; every
configuration is warmed up first. SQLite stands beside the others for comparison; it syncs at checkpoints only.

cycles   claim + 3 spans of 1 kB + finish, 8 client processes with one rollout each: direct connections, through one
         store server, through two. As a runner does it (spans go with the outcome; over HTTP the next claim too), or
         with three calls in turn.
spans    spans of 1 kB in batches of 500
waiting  1,000 waiters in 4 processes; items come one by one and in bursts. Wake-ups and looks into the queue are
         counted in the store, the wait is from just before the enqueue to the claim's answer
ray      rollouts through Ray's actors beside client-server with as many runners
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from databases import Database, cpu_seconds, postgres, redis
from line_process import Figures, LineProcess, ask_all, processes
from scale_clients import POLL_SECONDS, fill
from scale_stores import open_store, served

from sharpen.types import EnqueueRolloutRequest

CLIENTS, PROCESSES = 8, 4
SECTIONS = ("cycles", "spans", "waiting", "ray")
STORES = ("postgres", "redis", "sqlite", "memory")
GOALS = {("postgres", 0): 1_000, ("postgres", 1): 400}  # cycles a second: direct, through one server
SPANS_GOAL, WAIT_GOAL_MS, RAY_GOAL = 20_000, 50.0, 1.3


class Places:
    """Where stores are made: each asked for gets an empty one. Database servers are started when first needed."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._number = count()
        self._servers: dict[str, Database] = {}
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def database(self, kind: str) -> Database | None:
        if kind in ("postgres", "redis") and kind not in self._servers:
            self._servers[kind] = self._stack.enter_context(postgres() if kind == "postgres" else redis())
        return self._servers.get(kind)

    def empty(self, kind: str) -> str:
        """The URL of a store with nothing in it."""
        number, database = next(self._number), self.database(kind)
        if database is None:
            return "memory" if kind == "memory" else f"sqlite:///{self._folder}/{number}.db"
        if kind == "redis":
            import redis as driver

            driver.Redis.from_url(database.url).flushall()
            return database.url
        import psycopg

        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE bench_{number}")
        return database.url.removesuffix("postgres") + f"bench_{number}"


@contextlib.contextmanager
def reached(url: str, servers: int, *, counting: bool = False) -> Iterator[tuple[list[str], list[LineProcess]]]:
    """The addresses for clients: of the store itself, or of servers before it."""
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(served(url, counting=counting)) for _ in range(servers)]
        yield [address for address, _ in pairs] or [url], [server for _, server in pairs]


def way(servers: int) -> str:
    return ("direct", "through one server", "through two servers")[servers]


def rates(rounds: list[list[Figures]]) -> list[float]:
    """What all clients together did a second, round by round."""
    return [round(sum(each["done"] / each["seconds"] for each in figures), 1) for figures in rounds]


def line(measure: str, values: list[float], goal: float | None, unit: str) -> Figures:
    median = statistics.median(values)
    figures: Figures = {"measure": measure, "median": median, "all": values, "unit": unit}
    return figures if goal is None else figures | {"goal": goal, "reached": median >= goal}


# -- cycles and spans --------------------------------------------------------------------------------


def cycles(places: Places, kind: str, arguments: argparse.Namespace) -> Iterator[Figures]:
    ways = {"postgres": (0, 1, 2), "redis": (0, 1), "sqlite": (0, 1)}.get(kind, (1,))
    calls = ("as a runner", "in turn") if kind == "postgres" else ("as a runner",)
    for servers in ways:
        for how in calls[: 1 if servers > 1 else 2]:
            with reached(places.empty(kind), servers) as (urls, _):
                values = _cycle_rates(urls, how, arguments)
            title = f"{kind}: claim + 3 spans + finish, {CLIENTS} clients, {way(servers)}, {how}"
            yield line(title, values, GOALS.get((kind, servers)), "cycles/s")


def _cycle_rates(urls: list[str], how: str, arguments: argparse.Namespace) -> list[float]:
    job = {"do": "cycles", "calls": how, "seconds": arguments.seconds}
    jobs = [job | {"url": urls[n % len(urls)], "name": f"worker-{n}"} for n in range(CLIENTS)]
    enough = int(arguments.seconds * 3_000)
    asyncio.run(_fill_up(urls[0], enough))
    rounds = []
    with processes("scale_clients.py", jobs) as running:
        for _ in range(arguments.rounds):
            asyncio.run(_fill_up(urls[0], enough))
            rounds.append(ask_all(running))
    return rates(rounds)


async def _fill_up(url: str, size: int) -> None:
    store = open_store(url)
    try:
        await fill(store, max(size - (await store.statistics())["queue_length"], 0))
    finally:
        await store.close()


def spans(places: Places, kind: str, arguments: argparse.Namespace) -> Iterator[Figures]:
    for servers, n_clients in ((0, 2), (1, 2)):
        with reached(places.empty(kind), servers) as (urls, _):
            asyncio.run(_fill_up(urls[0], 16 * n_clients))
            job = {"do": "spans", "url": urls[0], "batches": 40 // n_clients}
            with processes("scale_clients.py", [job | {"name": f"worker-{n}"} for n in range(n_clients)]) as running:
                values = rates([ask_all(running) for _ in range(arguments.rounds)])
        title = f"{kind}: spans of 1 kB in bulk, {n_clients} client{'s'[: n_clients - 1]}, {way(servers)}"
        yield line(title, values, SPANS_GOAL if kind == "postgres" and not servers else None, "spans/s")


# -- waiting -----------------------------------------------------------------------------------------


def waiting(places: Places, kind: str, arguments: argparse.Namespace) -> Iterator[Figures]:
    for servers in {"postgres": (0, 1, 2)}.get(kind, (1,)):
        with reached(places.empty(kind), servers, counting=True) as (urls, counting):
            share = arguments.waiters // PROCESSES
            jobs = [
                {"do": "wait", "url": urls[n % len(urls)], "waiters": share, "name": f"w{n}"} for n in range(PROCESSES)
            ]
            with processes("scale_clients.py", jobs) as running:
                _settle(urls, share * PROCESSES)
                seen = Seen(running, counting, places.database(kind))
                title = f"{kind}: {share * PROCESSES} waiters, {way(servers)}"
                yield {"measure": f"{title}, idle"} | seen.idle(POLL_SECONDS)
                for phase, sizes, pause in (("one by one", [1] * 200, 0.02), ("in bursts of 50", [50] * 10, 0.4)):
                    asyncio.run(_feed(urls[0], sizes, pause, seen.start))
                    yield {"measure": f"{title}, items {phase}"} | seen.summary(sum(sizes))


def _settle(urls: list[str], waiters: int) -> None:
    """Until all of them wait: asked of servers, or taken for granted after a while."""
    if not urls[0].startswith("http"):
        time.sleep(4)
        return
    for _ in range(300):
        pages = [urlopen(f"{url}/metrics").read().decode() for url in urls]
        found = sum(float(page.partition("\nsharpen_store_requests_in_progress ")[2].split()[0]) for page in pages)
        if found >= waiters:
            return
        time.sleep(0.1)
    raise RuntimeError(f"{waiters} waiters did not come to wait")


async def _feed(url: str, sizes: list[int], pause: float, start: Callable[[], None]) -> None:
    """Put items into the queue; each says when it was sent."""
    store, random_pause = open_store(url), random.Random(0)
    await store.statistics()
    start()
    for size in sizes:
        since = time.monotonic()
        await store.enqueue_many_rollouts([EnqueueRolloutRequest({"since": since}) for _ in range(size)])
        await asyncio.sleep(random_pause.uniform(0.5, 1.5) * pause)
    for _ in range(200):
        if (await store.statistics())["queue_length"] == 0:
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)  # the last answers are on their way
    await store.close()


class Seen:
    """What waiters and their servers have seen since the start of a phase."""

    def __init__(self, running: list[LineProcess], servers: list[LineProcess], database: Database | None) -> None:
        self._running, self._servers, self._database = running, servers, database

    def start(self) -> None:
        ask_all(self._running)
        self._counted = self._count()

    def _count(self) -> Counter[str]:
        return sum((Counter(figures) for figures in ask_all(self._servers)), Counter[str]())

    def idle(self, seconds: float) -> Figures:
        """What waiting itself costs."""
        before = self._cpu()
        self.start()
        time.sleep(seconds)
        _, counts = self._end()
        used = {name: round((value - before[name]) / seconds, 3) for name, value in self._cpu().items()}
        return {"looks_per_second": round(counts["looks"] / seconds, 1), "cores_used": used}

    def _cpu(self) -> dict[str, float]:
        used = {"clients": cpu_seconds(*(each.pid for each in self._running))}
        if self._servers:
            used["servers"] = cpu_seconds(*(each.pid for each in self._servers))
        return used | ({} if self._database is None else {"database": self._database.cpu_seconds()})

    def _end(self) -> tuple[list[float], Counter[str]]:
        heard = ask_all(self._running)
        if any(figures["errors"] for figures in heard):
            raise RuntimeError("waiters ended with errors")
        counts = sum((Counter(figures["counts"]) for figures in heard), self._count() - self._counted)
        return [wait for figures in heard for wait in figures["waits"]], counts

    def summary(self, items: int) -> Figures:
        waits, counts = self._end()
        cuts = statistics.quantiles(waits, n=100)
        median = round(cuts[49] * 1000, 1)
        wakes = round(counts["wake_ups"] / items, 2)
        return {
            "items": items, "claimed": len(waits), "wait_median_ms": median,
            "wait_p99_ms": round(cuts[98] * 1000, 1), "wait_max_ms": round(max(waits) * 1000, 1),
            "wake_ups_per_item": wakes, "looks_per_item": round(counts["looks"] / items, 2),
            "looks_in_vain_per_item": round(counts["looks_in_vain"] / items, 2),
            "goal": f"one wake-up, median at most {WAIT_GOAL_MS:g} ms",
            "reached": len(waits) == items and wakes <= 1.05 and median <= WAIT_GOAL_MS,
        }  # fmt: skip


# -- Ray ---------------------------------------------------------------------------------------------


def ray(arguments: argparse.Namespace) -> Iterator[Figures]:
    """In a process of its own, so that Ray is gone afterwards."""
    rollouts, runners = arguments.ray
    program = f"import json, scale_ray; print(json.dumps(scale_ray.measure_ray({rollouts}, {runners})))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    for name, words in (("empty", "that do nothing"), ("20ms", "of 20 ms")):
        ratio = round(found[f"overhead_{name}"], 2)
        yield {
            "measure": f"ray: time of a rollout against client-server, {runners} runners, agents {words}",
            "ratio": ratio, "ray_per_second": round(found[f"ray_{name}"], 1),
            "client_server_per_second": round(found[f"client_server_{name}"], 1),
            "goal": RAY_GOAL, "reached": ratio <= RAY_GOAL,
        }  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--stores", default=",".join(STORES), help="stores, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each round of cycles")
    parser.add_argument("--waiters", type=int, default=1_000)
    parser.add_argument("--ray", type=int, nargs=2, default=(200, 2), metavar=("ROLLOUTS", "RUNNERS"))
    arguments = parser.parse_args()
    for name, known in (("only", SECTIONS), ("stores", STORES)):
        given = getattr(arguments, name).split(",")
        if not set(given) <= set(known):
            parser.error(f"--{name} {','.join(given)}: choose from {', '.join(known)}")
        setattr(arguments, name, given)
    return arguments


def measure(arguments: argparse.Namespace) -> Iterator[Figures]:
    sections: dict[str, Any] = {"cycles": cycles, "spans": spans, "waiting": waiting}
    with contextlib.ExitStack() as stack:
        places = Places(stack)
        for name, section in sections.items():
            for kind in arguments.stores if name in arguments.only else ():
                if kind != "memory" or name == "waiting":
                    yield from section(places, kind, arguments)
    if "ray" in arguments.only:
        yield from ray(arguments)


def main() -> None:
    for figures in measure(parse()):
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
