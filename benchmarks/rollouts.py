"""How fast rollouts go through a trainer, one JSON line per figure.

    python benchmarks/rollouts.py                   # ours alone
    python benchmarks/rollouts.py --peer            # beside agentlightning 0.3.0, in an environment of its own (.peer)
    python benchmarks/rollouts.py --only first

Each measure runs in a process of its own; with --peer the two take turns, and the ratio is that of the medians.
The agent is trivial and leaves three spans: two messages and its reward.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from peer import compared, measure, peer_python

SCRIPT = "rollouts_measures.py"
PEER_CS = ["rate", "--strategy", "cs", "--runners", "2", "--rollouts", "150"]
PEER_SHM = ["rate", "--strategy", "shm", "--runners", "1", "--rollouts", "300"]

# title, our arguments, the peer's arguments, the ratio to reach
COMPARED: list[tuple[str, list[str], list[str], float]] = [
    (
        "rollouts/s, client-server, 2 runners, SQLite (peer: memory)",
        ["rate", "--strategy", "cs", "--runners", "2", "--rollouts", "3000"],
        PEER_CS,
        20,
    ),
    (
        "rollouts/s, shared memory, memory store, 1 runner",
        ["rate", "--strategy", "shm", "--runners", "1", "--rollouts", "4000"],
        PEER_SHM,
        10,
    ),
    (
        "rollouts/s, shared memory, memory store, 4 runners (peer: 1, its only number without failures)",
        ["rate", "--strategy", "shm", "--runners", "4", "--rollouts", "4000"],
        PEER_SHM,
        10,
    ),
]
# title, arguments, the key of the figure, at most
BOUNDED: list[tuple[str, list[str], str, float]] = [
    ("seconds from fit() to the first finished rollout, client-server", ["first"], "first", 1.2),
    ("the same, second fit in the same process", ["first"], "second", 0.3),
    ("seconds for 1,000 async rollouts that each wait 1 s, concurrency 1,000", ["waiting"], "value", 3.0),
    ("CPU of tracing a span on the agent's thread, us", ["tracing"], "agent_us", 50),
    ("CPU of tracing a span in all processes together, us", ["tracing"], "all_us", 150),
    ("CPU of a span of the OpenTelemetry SDK, 2 attributes, agent's thread, us", ["sdk"], "small", 50),
    ("the same, 16 attributes as an LLM call has, us", ["sdk"], "llm", 50),
]


def compare(title: str, ours: list[str], theirs: list[str], goal: float, rounds: int, peer: str | None) -> None:
    mine, other, failed = [], [], 0
    for _ in range(rounds):
        figures = measure(SCRIPT, sys.executable, "sharpen", ours)
        mine.append(figures["value"])
        failed += figures["failed"]
        if peer is not None:
            other.append(measure(SCRIPT, peer, "agentlightning", theirs)["value"])
    print(json.dumps(compared(title, mine, other, goal, less_is_better=False) | {"failed": failed}), flush=True)


def bound(title: str, arguments: list[str], key: str, limit: float, rounds: int, known: dict[str, Any]) -> None:
    name = arguments[0]
    if name not in known:
        known[name] = [measure(SCRIPT, sys.executable, "sharpen", arguments) for _ in range(rounds)]
    values = [figures[key] for figures in known[name]]
    median = statistics.median(values)
    line = {"measure": title, "ours": median, "ours_all": values, "at_most": limit, "reached": median <= limit}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--peer", action="store_true", help="measure agentlightning 0.3.0 too")
    parser.add_argument("--peer-folder", type=Path, default=Path(__file__).parent.parent / ".peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a word of the measures to run")
    arguments = parser.parse_args()
    peer = peer_python(arguments.peer_folder) if arguments.peer else None
    for row in COMPARED:
        if arguments.only in row[0]:
            compare(*row, arguments.rounds, peer)
    known: dict[str, Any] = {}
    for each in BOUNDED:
        if arguments.only in each[0]:
            bound(*each, arguments.rounds, known)


if __name__ == "__main__":
    main()
