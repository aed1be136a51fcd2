"""What `queue_simulator.py` is told and what it answers: the measured costs, a plan, a prediction."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sharpen.errors import ConfigError

COSTS = Path(__file__).parent / "results" / "costs.json"
Shape = Literal["constant", "exponential", "lognormal"]


@dataclass(frozen=True)
class Cost:
    """What one operation takes: seconds of CPU in each part, and the commits it waits for."""

    client: float = 0.0
    server: float = 0.0
    database: float = 0.0
    commits: float = 0.0


@dataclass(frozen=True)
class Costs:
    """The operations of a run. A `turn` is the outcome with three spans and the next claim, in one request."""

    enqueue: Cost = Cost()
    turn: Cost = Cost()
    poll: Cost = Cost()
    """A long poll that finds nothing."""
    wake: Cost = Cost()
    """A poll that is woken, and its claim."""
    heartbeat: Cost = Cost()
    span: Cost = Cost()
    """Each span beyond three."""
    commit_seconds: float = 0.0
    """A sync to disk, which commits that come together share."""
    notifies_in_turn: bool = False
    """Whether completions that other servers have to hear of are committed one after another. So PostgreSQL does where
    NOTIFY is part of the transaction; our store notifies once it is committed."""

    @classmethod
    def read(cls, store: str, path: Path = COSTS) -> "Costs":
        """The measured costs of a store (`sqlite`, `postgres`)."""
        kept = json.loads(path.read_text())
        if store not in kept:
            raise ConfigError(f"{path.name} has no costs of {store!r}, but of {', '.join(kept)}: run queue_costs.py")
        return cls.of(kept[store])

    @classmethod
    def of(cls, kept: dict[str, Any]) -> "Costs":
        names = {field.name for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name in names & kept.keys():
            values[name] = Cost(**kept[name]) if isinstance(kept[name], dict) else kept[name]
        return cls(**values)


@dataclass(frozen=True)
class Plan:
    """What is simulated. Without a `rate` the queue is never empty."""

    runners: int
    agent_seconds: float
    costs: Costs
    agent_shape: Shape = "lognormal"
    servers: int = 1
    connections: int = 8
    """Of each server to the database."""
    database_cores: int = 4
    machine_cores: int | None = None
    """Everything on one machine of so many cores; None: every part on machines of its own."""
    latency_seconds: float = 0.0002
    spans: int = 3
    rate: float | None = None
    """Rollouts that are enqueued a second, `burst` at once, at random times."""
    burst: int = 1
    failure_rate: float = 0.0
    max_attempts: int = 3
    heartbeat_seconds: float = 10.0
    poll_seconds: float = 5.0
    woken_per_item: int = 1
    service_shape: Shape = "constant"
    warm_up_seconds: float = 0.0
    seconds: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("runners", "servers", "connections", "database_cores", "burst", "max_attempts", "woken_per_item"):
            _check(name, getattr(self, name), at_least=1)
        for name in ("seconds", "heartbeat_seconds", "poll_seconds"):
            _check(name, getattr(self, name), above=0)
        for name in ("agent_seconds", "latency_seconds", "spans", "warm_up_seconds"):
            _check(name, getattr(self, name), at_least=0)
        if self.machine_cores is not None:
            _check("machine_cores", self.machine_cores, at_least=1)
        if self.rate is not None:
            _check("rate", self.rate, above=0)
        if not 0 <= self.failure_rate < 1:
            raise ConfigError(f"failure_rate is {self.failure_rate}: use 0 or more, and less than 1")


def _check(name: str, value: float, *, at_least: float = -math.inf, above: float = -math.inf) -> None:
    if not (math.isfinite(value) and value >= at_least and value > above):
        wanted = f"more than {above:g}" if above > -math.inf else f"{at_least:g} or more"
        raise ConfigError(f"{name} is {value}: use {wanted}")


@dataclass(frozen=True)
class Prediction:
    """What is to be expected, over the time after the warm-up."""

    runners: int
    agent_seconds: float
    servers: int
    rollouts_per_second: float
    spans_per_second: float
    runners_busy: float
    """The share of the runners' time that is spent in agents."""
    server_busy: float
    """Of the busiest server's one core."""
    database_busy: float
    """Of the cores of the database."""
    disk_busy: float
    machine_busy: float
    wait_mean_ms: float | None
    """From enqueue to claim; None where the queue is never empty."""
    wait_median_ms: float | None
    wait_p99_ms: float | None
    turn_median_ms: float
    """From the end of an agent until its outcome is acknowledged and the next rollout is there, or known not to be."""
    turn_p99_ms: float
    enqueued: int
    finished: int
    failed: int
    queued: int
    in_hand: int
    retries: int
    wake_ups: int
    empty_wake_ups: int
    first_to_break: str
