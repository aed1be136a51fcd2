"""Make a store file of many rollouts and small spans, as a long run leaves it: for measuring screens and searches.

    python benchmarks/dashboard_store.py /tmp/large.db                       # 1,000,000 rollouts, 2,000,000 spans
    python benchmarks/dashboard_store.py /tmp/small.db --rollouts 50000 --spans 100000

The file is made by the store itself and filled with rows of the shapes that it writes; the same seed gives the same
rollouts. Rare things are in it on purpose: a worker of 5 rollouts, a resources version of 7, a mode of 1 in 1,000, a
word (`needle`) in 3 inputs near the beginning, and the rollout `ro-many-spans` with 2,000 spans.
"""

import argparse
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sharpen.semconv import AGL_REWARD, PRIMARY_REWARD_VALUE
from sharpen.store import SQLiteStore
from sharpen.types import PromptTemplate

MANY_SPANS = "ro-many-spans"
SPANS_OF_ONE = 2_000
GROUP_SIZE, GROUPS_IN_STEP, WORKERS, VERSIONS = 8, 64, 24, 20
START = 1_750_000_000.0
SECONDS_EACH = 0.05
SENTENCE = (
    "What is the sum of the numbers that a train passes between two stations when each of them leaves on time and "
    "arrives late by several minutes because of rain snow wind or a signal that stays red for longer than planned"
)
WORDS = SENTENCE.split()
ROLLOUT = (
    "INSERT INTO rollouts (number, rollout_id, status, phase, place, mode, start_time, end_time, resources_id, "
    "resources_version, reward, reward_span, attempts, last_span, input, metadata, attempt_id, attempt_start, "
    "attempt_end, attempt_status, worker_id, heartbeat) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
OLD_ATTEMPT = "INSERT INTO old_attempts VALUES (?,1,?,?,?,'unresponsive',?,?,NULL,0,NULL)"
SPAN = (
    "INSERT INTO spans (number, attempt, sequence_id, span_id, trace_id, parent_id, name, start_time, end_time, data) "
    "VALUES (?,?,?,?,?,?,?,?,?,?)"
)
Row = tuple[object, ...]


def generate(path: Path, *, rollouts: int, spans: int, seed: int = 0) -> None:
    """Write the file; one that is there is replaced."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    store = SQLiteStore(path)
    store._write_now("add_resources", {"main": PromptTemplate(template="Solve: {task}")}, "rs-main")
    for version in range(2, VERSIONS + 2):
        template = PromptTemplate(template=f"Solve, version {version}, step by step: {{task}}")
        store._write_now("update_resources", "rs-main", {"main": template})
    store._watchdog.stop()
    store._close_connections()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        _fill(connection, rollouts, spans, seed)
    finally:
        connection.close()


def _fill(connection: sqlite3.Connection, rollouts: int, spans: int, seed: int) -> None:
    """Indexes are made at the end, as that is many times faster."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -400000")
    connection.execute("BEGIN")
    made = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    indexes = connection.execute(made).fetchall()
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}")
    shapes = _Shapes(rollouts, spans, seed)
    connection.executemany(ROLLOUT, shapes.rollouts())
    connection.executemany(OLD_ATTEMPT, shapes.old_attempts())
    connection.executemany(SPAN, shapes.spans())
    connection.executemany("INSERT INTO workers VALUES (?,NULL,?,?,?,?)", shapes.workers())
    for _, sql in indexes:
        connection.execute(sql)
    _write_totals(connection)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _write_totals(connection: sqlite3.Connection) -> None:
    counts = dict(connection.execute("SELECT status, count(*) FROM rollouts GROUP BY status").fetchall())
    (attempts,) = connection.execute("SELECT sum(attempts) FROM rollouts").fetchone()
    finished = [counts.get(status, 0) for status in ("succeeded", "failed", "cancelled")]
    connection.execute(
        "UPDATE totals SET queuing = ?, active = ?, succeeded = ?, failed = ?, cancelled = ?, finished = ?, "
        "attempts = ?",
        (
            counts.get("queuing", 0),
            counts.get("preparing", 0) + counts.get("running", 0),
            *finished,
            sum(finished),
            attempts,
        ),
    )


class _Shapes:
    """The rows, one after the other; each depends on its number and the seed alone."""

    def __init__(self, rollouts: int, spans: int, seed: int) -> None:
        self.count, self.seed = rollouts, seed
        self.queued_from = rollouts - rollouts // 200
        self.active_from = self.queued_from - min(WORKERS, rollouts // 10)
        self.finished = self.active_from - 1
        self.of_many = max(1, rollouts // 2)
        each = max(0, spans - SPANS_OF_ONE)
        self.spans_each, self.spans_more = divmod(each, max(1, self.finished - 1))

    def _random(self, number: int, what: int) -> random.Random:
        return random.Random(self.seed * 1_000_003 + number * 7 + what)

    def status(self, number: int) -> str:
        if number >= self.queued_from:
            return "queuing"
        if number >= self.active_from:
            return "running"
        kind = (number * 7919 + self.seed) % 1000
        return "failed" if kind < 30 else "cancelled" if kind < 33 else "succeeded"

    def worker(self, number: int) -> str:
        is_rare = number % max(1, self.count // 5) == 3
        return "worker-rare" if is_rare else f"worker-{number % WORKERS:02d}"

    def has_retry(self, number: int) -> bool:
        return number < self.active_from and number % 50 == 7

    def reward(self, number: int) -> float | None:
        if self.status(number) != "succeeded":
            return None
        chance = self._random(number, 1).random()
        return float(chance < 0.6) if number % 3 else round(chance * 2 - 0.5, 4)

    def span_count(self, number: int) -> int:
        if number >= self.active_from:
            return 0
        if number == self.of_many:
            return SPANS_OF_ONE
        return self.spans_each + (number - (number > self.of_many) <= self.spans_more)

    def rollouts(self) -> Iterator[Row]:
        finish = 0
        for number in range(1, self.count + 1):
            status = self.status(number)
            start = START + number * SECONDS_EACH
            finish += number < self.active_from
            yield (*self._task(number, status, start, finish), *self._attempt(number, status, start))

    def rollout_id(self, number: int) -> str:
        return MANY_SPANS if number == self.of_many else f"ro-{number * 2654435761 % 2**40:010x}"

    def _task(self, number: int, status: str, start: float, finish: int) -> Row:
        is_done = status not in ("queuing", "running")
        phase = {"queuing": "queued", "running": "active"}.get(status, status)
        place = {"queuing": number, "running": self.worker(number)}.get(status, finish)
        mode = "test" if number % 1000 == 500 else "val" if number % 20 == 0 else "train"
        version = VERSIONS + 1 if number % max(1, self.count // 7) == 5 else 1 + number * VERSIONS // (self.count + 1)
        reward = self.reward(number)
        counted = self.span_count(number)
        return (
            number,
            self.rollout_id(number),
            status,
            phase,
            place,
            mode,
            start,
            start + 3.0 if is_done else None,
            "rs-main",
            version,
            reward,
            0 if reward is None else counted,
            0 if status == "queuing" else 2 if self.has_retry(number) else 1,
            counted,
            *self._bodies(number),
        )

    def _bodies(self, number: int) -> tuple[str, str]:
        task, sample = divmod(number, GROUP_SIZE)
        chosen = self._random(task, 2).choices(WORDS, k=24)
        if number in (self.count // 50, self.count // 50 + 1, self.count // 40):
            chosen[3] = "needle"
        step, name = task // GROUPS_IN_STEP, f"run-1-step-{task // GROUPS_IN_STEP:05d}-t{task % GROUPS_IN_STEP}"
        return (
            f'{{"question":"{" ".join(chosen)}","task_id":{task}}}',
            f'{{"group":"{name}","sample":{sample},"step":{step}}}',
        )

    def _attempt(self, number: int, status: str, start: float) -> Row:
        if status == "queuing":
            return (None,) * 6
        attempt_status = {"cancelled": "failed"}.get(status, status)
        end = None if status == "running" else start + 3.0
        return f"at-{number:010x}", start + 0.5, end, attempt_status, self.worker(number), start + 2.5

    def old_attempts(self) -> Iterator[Row]:
        for number in range(1, self.active_from):
            if self.has_retry(number):
                start = START + number * SECONDS_EACH
                yield number, f"at-{number:010x}-1", start, start + 0.4, self.worker(number + 1), start + 0.2

    def spans(self) -> Iterator[Row]:
        calls = [_call(index) for index in range(200)]
        for number in range(1, self.active_from):
            count, reward = self.span_count(number), self.reward(number)
            attempt, start = 2 if self.has_retry(number) else 1, START + number * SECONDS_EACH
            for index in range(1, count + 1):
                is_reward = index == count and reward is not None
                data = f'{{"attributes":{{"{PRIMARY_REWARD_VALUE}":{reward!r}}}}}' if is_reward else calls[index % 200]
                parent = None if index == 1 or index % 50 == 0 else f"{number:010x}{max(1, index // 4):06x}"
                began = start + 0.5 + 2.4 * index / (count + 1)
                yield (
                    number,
                    attempt,
                    index,
                    f"{number:010x}{index:06x}",
                    f"{number:032x}",
                    parent,
                    AGL_REWARD if is_reward else "openai.chat.completion" if index % 3 else "tool.search",
                    began,
                    began + 2.4 / (count + 1),
                    data,
                )

    def workers(self) -> Iterator[Row]:
        now = START + self.count * SECONDS_EACH
        for worker_id in [*(f"worker-{index:02d}" for index in range(WORKERS)), "worker-rare"]:
            yield worker_id, now, now - 3, now - 3, now - 4


def _call(index: int) -> str:
    """The body of a small chat call."""
    return msgspec.json.encode(
        {
            "attributes": {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "small-model",
                "gen_ai.prompt.0.role": "user",
                "gen_ai.prompt.0.content": f"Question {index}: {' '.join(WORDS[index % 20 :][:8])}",
                "gen_ai.completion.0.content": f"Let me think. The answer is {index}.",
                "gen_ai.usage.input_tokens": 40 + index,
                "gen_ai.usage.output_tokens": 12,
            }
        }
    ).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--spans", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    generate(arguments.path, rollouts=arguments.rollouts, spans=arguments.spans, seed=arguments.seed)
    size = arguments.path.stat().st_size / 2**20
    print(f"{arguments.path}: {size:.0f} MB in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
