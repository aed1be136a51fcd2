"""Steps a second of vector environments, one JSON line per figure.

    python benchmarks/vector_envs.py                 # ours alone
    python benchmarks/vector_envs.py --peer          # beside gymnasium, and Qlib's stack in an environment of its own
    python benchmarks/vector_envs.py --peer --qlib PATH/bin/python     # an environment of Qlib that is there already

Eight CartPoles with constant actions and no policy. Each measure runs in a process of its own; with --peer the two
take turns, and the ratio is that of the medians, since on shared cores absolute figures are not stable.
"""

import argparse
import json
import statistics
import subprocess
import sys
import venv
from pathlib import Path

from peer import compared, measure

SCRIPT = "vector_envs_measures.py"
QLIB_PACKAGES = ["pyqlib", "tianshou==0.4.10", "gym", "numpy<2"]

# title, our arguments, the peer and its arguments, the ratio to reach
COMPARED: list[tuple[str, list[str], str, list[str], float]] = [
    ("in process, default validation: Qlib's full stack", ["dummy"], "qlib", ["dummy"], 6),
    (
        "in process, only the first step validated: Qlib's full stack",
        ["dummy", "--validate", "first"],
        "qlib",
        ["dummy"],
        10,
    ),
    ("in process: gymnasium's SyncVectorEnv on a bare environment", ["dummy"], "gymnasium", ["sync"], 1 / 3),
    ("subprocess: Qlib's full stack", ["subproc"], "qlib", ["subproc"], 3),
    ("subprocess: gymnasium's AsyncVectorEnv", ["subproc"], "gymnasium", ["async"], 1),
    ("shared memory: Qlib's full stack", ["shmem"], "qlib", ["shmem"], 3),
    ("shared memory: gymnasium's AsyncVectorEnv", ["shmem"], "gymnasium", ["async-shm"], 1),
]
# title, arguments, at least
REACHED: list[tuple[str, list[str], float]] = [
    ("vector simulator in NumPy, 512 episodes, constant actions, steps/s", ["vector-512"], 1_000_000),
]
# title, arguments, at most
BOUNDED: list[tuple[str, list[str], float]] = [
    ("seconds of an iteration with nothing to do, in process", ["idle-dummy"], 0.02),
    ("seconds of an iteration with nothing to do, subprocess", ["idle-subproc"], 0.02),
    ("seconds of an iteration with nothing to do, shared memory", ["idle-shmem"], 0.02),
]
PLAIN: list[tuple[str, list[str]]] = [
    ("whole collects, steps kept and logged, in process, steps/s", ["collect-dummy"]),
    ("whole collects, steps kept and logged, subprocess, steps/s", ["collect-subproc"]),
    ("whole collects, steps kept and logged, shared memory, steps/s", ["collect-shmem"]),
]


def qlib_python(folder: Path) -> str:
    """Qlib, pinned to packages that its simulators still work with."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *QLIB_PACKAGES], check=True)
    return str(python)


def figure(python: str, package: str, arguments: list[str]) -> float:
    return float(measure(SCRIPT, python, package, arguments)["value"])


def compare(
    title: str, ours: list[str], peer: str, theirs: list[str], goal: float, rounds: int, python: str | None
) -> None:
    mine, other = [], []
    for _ in range(rounds):
        mine.append(figure(sys.executable, "sharpen", ours))
        if python is not None:
            other.append(figure(python, peer, theirs))
    print(json.dumps(compared(title, mine, other, goal, less_is_better=False)), flush=True)


def bound(
    title: str, arguments: list[str], rounds: int, *, least: float | None = None, most: float | None = None
) -> None:
    values = [figure(sys.executable, "sharpen", arguments) for _ in range(rounds)]
    median = statistics.median(values)
    line: dict[str, object] = {"measure": title, "ours": median, "ours_all": values}
    if least is not None:
        line |= {"at_least": least, "reached": median >= least}
    if most is not None:
        line |= {"at_most": most, "reached": median <= most}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--peer", action="store_true", help="beside gymnasium and Qlib")
    parser.add_argument(
        "--qlib", help="the Python of an environment that holds Qlib (default: one is made in .peer-qlib)"
    )
    parser.add_argument("--no-qlib", action="store_true", help="beside gymnasium only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="measures whose title holds this text")
    chosen = parser.parse_args()
    pythons: dict[str, str | None] = {"gymnasium": sys.executable if chosen.peer else None, "qlib": None}
    if chosen.peer and not chosen.no_qlib:
        pythons["qlib"] = chosen.qlib or qlib_python(Path(".peer-qlib"))
    for title, ours, peer, theirs, goal in COMPARED:
        if chosen.only in title:
            compare(title, ours, peer, theirs, goal, chosen.rounds, pythons[peer])
    for title, ours, least in REACHED:
        if chosen.only in title:
            bound(title, ours, chosen.rounds, least=least)
    for title, ours, most in BOUNDED:
        if chosen.only in title:
            bound(title, ours, chosen.rounds, most=most)
    for title, ours in PLAIN:
        if chosen.only in title:
            bound(title, ours, chosen.rounds)


if __name__ == "__main__":
    main()
