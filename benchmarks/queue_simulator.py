"""What a store carries, by simulation: runners, store servers and one database as queues, with measured costs.

    python benchmarks/queue_simulator.py --runners 10000 --agent-seconds 10 --servers 4
    python benchmarks/queue_simulator.py --table                    # 8 to 10,000 runners, agents of 1, 10 and 60 s
    python benchmarks/queue_simulator.py --runners 1000 --rate 80 --burst 64 --store sqlite

The costs are those that `queue_costs.py` measured (`results/costs.json`): seconds of CPU of each operation in the
client, the store server and the database, and the time of a sync to disk. Every figure follows from them and the seed.

How it works: a part of the system does a number of pieces of work at a time, and the rest wait in order. A runner waits
in a long poll, is woken for one item, runs its agent, and hands in the outcome with its spans while it claims the next
rollout in the same request. Heartbeats run beside it. A store server is one Python process, so it computes one thing at
a time; its transactions use up to `connections` connections at once; commits that come together share one sync.
Not simulated: leases that run out, memory, and costs that grow with the size of the store.
"""

import argparse
import dataclasses
import json
import math
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from queue_clock import Clock, Disk, Gauge, Line, Place, Process, Station
from queue_plan import COSTS, Cost, Costs, Plan, Prediction, Shape

RUNNERS, AGENT_SECONDS = (8, 64, 1_000, 10_000), (1.0, 10.0, 60.0)


@dataclass
class Item:
    """A rollout. `since` is when it came into the queue."""

    since: float
    attempts: int = 0


class Found:
    """What a request claims at the moment of its commit."""

    def __init__(self, claim: Callable[[], Item | None]) -> None:
        self._claim = claim
        self.item: Item | None = None

    def __call__(self) -> None:
        self.item = self._claim()


class Server:
    """A store server: one thread that computes, and its connections."""

    def __init__(self, clock: Clock, connections: int) -> None:
        self.thread, self.connections = Station(clock, 1), Station(clock, connections)


class System:
    """The parts of a plan, and what was seen of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.clock = plan, Clock()
        self._random = random.Random(plan.seed)
        self.servers = [Server(self.clock, plan.connections) for _ in range(plan.servers)]
        self.database = Station(self.clock, plan.database_cores)
        self.disk = Disk(self.clock, plan.costs.commit_seconds)
        self._order = Station(self.clock, 1)
        self.cores = None if plan.machine_cores is None else Station(self.clock, plan.machine_cores)
        self.queue: deque[Item] = deque()
        self.line = Line()
        self._turn = _with_spans(plan.costs, plan.spans)
        self.tells_others = plan.costs.notifies_in_turn and plan.servers > 1
        self.waits: list[float] = []
        self.turns: list[float] = []
        self.enqueued = self.finished = self.failed = self.retries = self.in_hand = 0
        self.wake_ups = self.empty_wake_ups = 0
        self.in_agents = Gauge(self.clock)

    def start(self) -> None:
        plan = self.plan
        for number in range(plan.runners):
            server = self.servers[number % plan.servers]
            self.clock.start(self._runner(server))
            if plan.costs.heartbeat != Cost():
                self.clock.start(self._heartbeats(server))
        if plan.rate is not None:
            self.clock.start(self._algorithm(plan.rate))

    def forget(self) -> None:
        """The warm-up is over: count from here."""
        self.waits, self.turns = [], []
        self.in_agents.forget()
        self.wake_ups = self.empty_wake_ups = 0
        for station in (*(server.thread for server in self.servers), self.database, self.disk, self.cores):
            if station is not None:
                station.worked = 0.0

    # The roles.

    def _algorithm(self, rate: float) -> Process:
        plan = self.plan
        for number in count():
            yield self._random.expovariate(rate / plan.burst)
            self.clock.start(self._enqueue(self.servers[number % plan.servers]))

    def _enqueue(self, server: Server) -> Process:
        since, burst = self.clock.now, self.plan.burst
        yield from self._request(server, _times(self.plan.costs.enqueue, burst))
        self.enqueued += burst
        self.queue.extend(Item(since) for _ in range(burst))
        for _ in range(burst * self.plan.woken_per_item):
            if not self.line.wake():
                break

    def _runner(self, server: Server) -> Process:
        item: Item | None = None
        is_first = True
        while True:
            if item is None:
                item = yield from self._wait(server)
            seconds = _draw(self._random, self.plan.agent_seconds, self.plan.agent_shape)
            if is_first:  # runners are somewhere in the middle of their work when we begin to look
                seconds, is_first = seconds * self._random.random(), False
            self.in_agents.change(+1)
            yield seconds
            self.in_agents.change(-1)
            item = yield from self._hand_in(server, item)

    def _wait(self, server: Server) -> Generator[Any, None, Item]:
        """Long polls, one after another, until there is something."""
        while True:
            yield from self._request(server, self.plan.costs.poll)
            item = self._take()
            if item is not None:
                return item
            place = Place(self.clock, self.line, self.plan.poll_seconds)
            yield place
            if place.is_over:
                continue
            self.wake_ups += 1
            found = Found(self._take)
            yield from self._request(server, self.plan.costs.wake, found)
            if found.item is not None:
                return found.item
            self.empty_wake_ups += 1

    def _hand_in(self, server: Server, item: Item) -> Generator[Any, None, Item | None]:
        began, found = self.clock.now, Found(lambda: self._swap(item))
        yield from self._request(server, self._turn, found, finishes=True)
        self.turns.append(self.clock.now - began)
        return found.item

    def _swap(self, item: Item) -> Item | None:
        """The outcome of one rollout is kept, and the next one is claimed."""
        self.in_hand -= 1
        item.attempts += 1
        is_lost = self.plan.failure_rate > 0 and self._random.random() < self.plan.failure_rate
        if is_lost and item.attempts < self.plan.max_attempts:
            self.retries += 1
            item.since = self.clock.now
            self.queue.append(item)
        elif is_lost:
            self.failed += 1
        else:
            self.finished += 1
        return self._take()

    def _take(self) -> Item | None:
        if self.queue:
            item = self.queue.popleft()
        elif self.plan.rate is None:
            self.enqueued += 1
            item = Item(self.clock.now)
        else:
            return None
        self.in_hand += 1
        self.waits.append(self.clock.now - item.since)
        return item

    def _heartbeats(self, server: Server) -> Process:
        pause = self.plan.heartbeat_seconds
        yield pause * self._random.random()
        while True:
            yield from self._request(server, self.plan.costs.heartbeat)
            yield pause * self._random.uniform(0.95, 1.05)

    # The way of a request.

    def _request(
        self, server: Server, cost: Cost, at_commit: Callable[[], object] | None = None, *, finishes: bool = False
    ) -> Generator[Any, None, None]:
        """From the client through the server into the database and back; half of each way's work is on the way in."""
        latency = self.plan.latency_seconds
        yield from self._compute(None, cost.client / 2)
        if latency:
            yield latency
        yield from self._compute(server.thread, cost.server / 2)
        if cost.database or cost.commits:
            yield server.connections
            yield from self._compute(self.database, cost.database)
            yield from self._commit(cost.commits, is_ordered=finishes and self.tells_others)
            server.connections.leave()
        if at_commit is not None:
            at_commit()
        yield from self._compute(server.thread, cost.server / 2)
        if latency:
            yield latency
        yield from self._compute(None, cost.client / 2)

    def _compute(self, station: Station | None, seconds: float) -> Generator[Any, None, None]:
        """Work on a thread or a core of its part, and on a core of the machine where all share one."""
        if seconds <= 0:
            return
        seconds = _draw(self._random, seconds, self.plan.service_shape)
        if station is not None:
            yield station
            station.worked += seconds
        if self.cores is not None:
            yield self.cores
            self.cores.worked += seconds
        yield seconds
        if self.cores is not None:
            self.cores.leave()
        if station is not None:
            station.leave()

    def _commit(self, commits: float, *, is_ordered: bool) -> Generator[Any, None, None]:
        if not commits or not self.disk.seconds:
            return
        if is_ordered:
            yield self._order
        yield self.disk
        if is_ordered:
            self._order.leave()


def _draw(source: random.Random, mean: float, shape: Shape) -> float:
    if shape == "constant" or mean == 0:
        return mean
    if shape == "exponential":
        return source.expovariate(1 / mean)
    # Half of the agents take less than 0.61 of the mean, one of a hundred more than 6 times as long.
    return source.lognormvariate(math.log(mean) - 0.5, 1.0)


def _times(cost: Cost, number: float) -> Cost:
    """Many of them in one request, which is committed once."""
    return Cost(cost.client * number, cost.server * number, cost.database * number, cost.commits)


def _with_spans(costs: Costs, spans: int) -> Cost:
    turn, more = costs.turn, spans - 3
    parts = ((getattr(turn, name), getattr(costs.span, name)) for name in ("client", "server", "database"))
    client, server, database = (max(base + more * each, 0.0) for base, each in parts)
    return Cost(client, server, database, turn.commits)


def simulate(plan: Plan) -> Prediction:
    """Run a plan. The same plan gives the same figures."""
    system = System(plan)
    system.start()
    system.clock.run(plan.warm_up_seconds)
    system.forget()
    finished = system.finished
    system.clock.run(plan.warm_up_seconds + plan.seconds)
    return _summary(plan, system, system.finished - finished)


def _summary(plan: Plan, system: System, finished: int) -> Prediction:
    seconds = plan.seconds
    shares = {
        "store server": max(server.thread.worked for server in system.servers) / seconds,
        "database": system.database.worked / seconds / plan.database_cores,
        "disk": system.disk.worked / seconds,
        "cores": 0.0 if system.cores is None else system.cores.worked / seconds / system.cores.capacity,
    }
    # What is begun in the window may end after it: no part is busier than always.
    shares = {name: round(min(share, 1.0), 3) for name, share in shares.items()}
    busy = system.in_agents.area / seconds / plan.runners
    waits = None if plan.rate is None else system.waits
    return Prediction(
        runners=plan.runners, agent_seconds=plan.agent_seconds, servers=plan.servers,
        rollouts_per_second=round(finished / seconds, 2), spans_per_second=round(finished * plan.spans / seconds, 1),
        runners_busy=round(busy, 3), server_busy=shares["store server"], database_busy=shares["database"],
        disk_busy=shares["disk"], machine_busy=shares["cores"],
        wait_mean_ms=None if waits is None else round(sum(waits) / max(len(waits), 1) * 1000, 3),
        wait_median_ms=None if waits is None else _milliseconds(waits, 0.5),
        wait_p99_ms=None if waits is None else _milliseconds(waits, 0.99),
        turn_median_ms=_milliseconds(system.turns, 0.5), turn_p99_ms=_milliseconds(system.turns, 0.99),
        enqueued=system.enqueued, finished=system.finished, failed=system.failed, queued=len(system.queue),
        in_hand=system.in_hand, retries=system.retries,
        wake_ups=system.wake_ups, empty_wake_ups=system.empty_wake_ups,
        first_to_break=_first_to_break(shares, busy, is_disk_shared=not system.tells_others),
    )  # fmt: skip


def _first_to_break(shares: dict[str, float], busy: float, *, is_disk_shared: bool) -> str:
    """The part with the least to spare; the runners themselves where everything else has plenty.

    A disk may sync all the time and still be far from its limit, since commits share a sync.
    """
    name, share = max(
        ((name, share) for name, share in shares.items() if name != "disk" or not is_disk_shared),
        key=lambda each: each[1],
    )
    return name if share > busy or share > 0.9 else "runners"


def _milliseconds(values: Sequence[float], share: float) -> float:
    if not values:
        return 0.0
    return round(sorted(values)[min(int(len(values) * share), len(values) - 1)] * 1000, 3)


# -- the command -------------------------------------------------------------------------------------


def settled(plan: Plan) -> Plan:
    """The same with a warm-up and a time that fit the agents: long enough for some thousand rollouts."""
    seconds = max(20 + plan.agent_seconds / 2, 4_000 * plan.agent_seconds / plan.runners)
    return dataclasses.replace(plan, warm_up_seconds=10 + 2 * plan.agent_seconds, seconds=seconds)


def table(plan: Plan, load: float) -> list[dict[str, Any]]:
    """Each number of runners with each length of agents: with a queue that never ends, and with `load` of what the
    runners could do coming in at random times."""
    rows = []
    for runners in RUNNERS:
        for seconds in AGENT_SECONDS:
            full = simulate(settled(dataclasses.replace(plan, runners=runners, agent_seconds=seconds)))
            rate = load * runners / seconds
            part = simulate(settled(dataclasses.replace(plan, runners=runners, agent_seconds=seconds, rate=rate)))
            rows.append(_row(full) | {"rate": rate, "at_rate": _row(part)})
    return rows


def _row(prediction: Prediction) -> dict[str, Any]:
    return dataclasses.asdict(prediction)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--runners", type=int, default=1_000)
    parser.add_argument("--agent-seconds", type=float, default=10.0)
    parser.add_argument("--agent-shape", default="lognormal", choices=["constant", "exponential", "lognormal"])
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--database-cores", type=int, default=4)
    parser.add_argument("--machine-cores", type=int, help="everything on one machine of so many cores")
    parser.add_argument("--latency-ms", type=float, default=0.2, help="one way, between client and server")
    parser.add_argument("--spans", type=int, default=3, help="of each rollout")
    parser.add_argument("--rate", type=float, help="rollouts enqueued a second (default: the queue is never empty)")
    parser.add_argument("--burst", type=int, default=1, help="rollouts enqueued at once")
    parser.add_argument("--failure-rate", type=float, default=0.0, help="share of attempts that are tried again")
    parser.add_argument("--woken-per-item", type=int, default=1, help="1000 shows what a herd would cost")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", default="postgres", help="whose costs: postgres, sqlite")
    parser.add_argument("--costs", type=Path, default=COSTS, help="the file that queue_costs.py wrote")
    parser.add_argument("--table", action="store_true", help="8 to 10,000 runners, agents of 1, 10 and 60 s")
    parser.add_argument("--load", type=float, default=0.8, help="of the table's open queue")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    names = {field.name for field in dataclasses.fields(Plan)} - {"costs"}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    costs = Costs.read(arguments.store, arguments.costs)
    plan = Plan(**given, costs=costs, latency_seconds=arguments.latency_ms / 1000)
    began = time.perf_counter()
    if arguments.table:
        for row in table(plan, arguments.load):
            print(json.dumps(row), flush=True)
        return
    row = _row(simulate(settled(plan)))
    print(json.dumps(row | {"simulated_in_seconds": round(time.perf_counter() - began, 1)}))


if __name__ == "__main__":
    main()
