"""How fast the store is, one JSON line per figure.

    python benchmarks/store.py                      # ours alone
    python benchmarks/store.py --peer               # beside agentlightning 0.3.0, in an environment of its own (.peer)
    python benchmarks/store.py --only scale --sizes 1000,100000,1000000

Each measure runs in a process of its own; with --peer the two take turns, and the ratio is that of the medians.
On shared cores absolute figures move from run to run; read the ratios.
"""

import argparse
import json
import sys
from pathlib import Path

from peer import compared, measure, peer_python

HERE = Path(__file__).parent
SCRIPT = "store_measures.py"

# name, our measure, the peer's measure, the ratio to reach, whether less is better
COMPARED = [
    ("claim + span + finish, in process, memory", "cycle_memory", "cycle_memory", 20, False),
    ("claim + span + finish, in process, SQLite (peer: memory)", "cycle_sqlite", "cycle_memory", 8, False),
    ("claim + span + finish, HTTP, 16 in flight, as a runner", "http_runner", "http_runner", 20, False),
    ("claim + span + finish, HTTP, three calls in turn", "http_in_turn", "http_in_turn", 8, False),
    ("spans in bulk, HTTP into SQLite (peer: memory)", "spans_bulk", "spans_bulk", 200, False),
    ("memory of 10,000 finished rollouts of 4 spans", "memory_10k", "memory_10k", 3, True),
    ("CPU time of the import", "import_time", "import_time", 1, True),
]


def compare(row: tuple[str, str, str, float, bool], rounds: int, peer: str | None) -> None:
    title, ours_name, peer_name, goal, less_is_better = row
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(measure(SCRIPT, sys.executable, "sharpen", [ours_name])["value"])
        if peer is not None:
            theirs.append(measure(SCRIPT, peer, "agentlightning", [peer_name])["value"])
    print(json.dumps(compared(title, ours, theirs, goal, less_is_better=less_is_better)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--peer", action="store_true", help="measure agentlightning 0.3.0 too")
    parser.add_argument("--peer-folder", type=Path, default=HERE.parent / ".peer", help="its environment")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="a word of the measures to run")
    parser.add_argument("--sizes", default="1000,100000,1000000", help="rollouts in the store, for the scale measure")
    arguments = parser.parse_args()
    peer = peer_python(arguments.peer_folder) if arguments.peer else None
    for row in COMPARED:
        if not arguments.only or arguments.only in row[0] or arguments.only in row[1]:
            compare(row, arguments.rounds, peer)
    if not arguments.only or arguments.only in "scale":
        figures = measure(SCRIPT, sys.executable, "sharpen", ["scale", "--sizes", arguments.sizes])
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
