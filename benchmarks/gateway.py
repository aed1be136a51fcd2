"""What the gateway costs, one JSON line per figure.

    python benchmarks/gateway.py                    # ours beside direct calls
    python benchmarks/gateway.py --peer             # and agentlightning 0.3.0, in an environment of its own (.peer)
    python benchmarks/gateway.py --only latency
    python benchmarks/gateway.py --quick            # fewer calls: memory after 10,000 of them

Model server, gateway and load are processes of their own; in every round they take turns, and ratios are those of the
medians. The model server answers at once, or after 50 ms, with 128 prompt and 64 response token ids. Our gateway is a
process that records into SQLite, as in a run; the peer's records into memory.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peer import HERE, compared, peer_python

SERVERS, LOAD = str(HERE / "gateway_servers.py"), str(HERE / "gateway_load.py")
PEER_CALLS = 200
FLAT_GROWTH, FLAT_STEP_MB = 1.10, 4.0

Figures = dict[str, Any]


@contextmanager
def served(python: str, *arguments: str) -> Iterator[Figures]:
    """What a server says of itself once it answers; it ends when its input is closed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = subprocess.Popen([python, SERVERS, *arguments], text=True, env=environment, **pipes)  # type: ignore[call-overload]
    try:
        line = process.stdout.readline()
        if not line:
            sys.exit(f"{SERVERS} {' '.join(arguments)} did not start: run it by itself to see why")
        yield json.loads(line)
    finally:
        process.stdin.close()
        process.wait(60)


def asked(name: str, *arguments: str) -> Figures:
    """One measure of the load."""
    command = [sys.executable, LOAD, name, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    if figures.get("errors"):
        sys.exit(f"{name} {arguments} had errors: {figures}")
    return figures


@contextmanager
def gateways(model: Figures, peer: str | None, rollouts: int = 1) -> Iterator[dict[str, Figures]]:
    """The ways to the model: direct, ours and the peer's."""
    with tempfile.TemporaryDirectory() as folder:
        ours = ["ours", "--upstream", model["url"], "--store", f"{folder}/store.db", "--rollouts", str(rollouts)]
        with served(sys.executable, *ours) as mine:
            ways = {"direct": {"urls": [model["url"]]}, "ours": mine}
            if peer is None:
                yield ways
                return
            with served(peer, "peer", "--upstream", model["url"]) as theirs:
                yield ways | {"peer": theirs}


def show(line: Figures) -> None:
    print(json.dumps(line), flush=True)


# -- the rows ----------------------------------------------------------------------------------------


def rate(rounds: int, calls: int, peer: str | None) -> None:
    """Requests a second, eight at once, against a model that answers at once."""
    rates = _rates(0, rounds, calls, peer)
    title = "requests/s at concurrency 8, attributed and recorded"
    if peer is not None:
        show(compared(title, rates["ours"], rates["peer"], 20, less_is_better=False))
    _show_share(title, rates, 0.25)


def rate_50ms(rounds: int, calls: int, peer: str | None) -> None:
    rates = _rates(50, rounds, max(calls // 10, 200), None)
    _show_share("the same with a model that takes 50 ms", rates, 0.95)


def _rates(delay_ms: int, rounds: int, calls: int, peer: str | None) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    with served(sys.executable, "model", "--delay-ms", str(delay_ms)) as model, gateways(model, peer) as ways:
        for _ in range(rounds):
            for name, way in ways.items():
                count = PEER_CALLS if name == "peer" else calls
                before = cpu_seconds(way.get("pid"))
                figures = asked("rate", "--urls", *way["urls"], "--calls", str(count), "--concurrency", "8")
                found.setdefault(name, []).append(figures["rate"])
                if name == "ours":
                    used = cpu_seconds(way["pid"]) - before
                    found.setdefault("cpu_us", []).append(round(used / count * 1e6))
    return found


def _show_share(title: str, rates: dict[str, list[float]], goal: float) -> None:
    share = statistics.median(rates["ours"]) / statistics.median(rates["direct"])
    line: Figures = {"measure": f"{title}, as a share of direct", "ours": round(share, 3), "goal": goal}
    line |= {"reached": share >= goal, "ours_all": rates["ours"], "direct_all": rates["direct"]}
    show(line | {"gateway_cpu_us_a_call": rates["cpu_us"]})


def latency(rounds: int, calls: int, peer: str | None) -> None:
    _added("added latency at concurrency 1, median, ms", "latency", rounds, calls // 5, peer)


def first(rounds: int, calls: int, peer: str | None) -> None:
    _added("added time to the first streamed byte, median, ms", "first", rounds, calls // 5, peer)


def _added(title: str, name: str, rounds: int, calls: int, peer: str | None) -> None:
    """Direct and indirect calls take turns, one by one, so that both see the same machine."""
    found: dict[str, list[float]] = {}
    with served(sys.executable, "model") as model, gateways(model, peer) as ways:
        for _ in range(rounds):
            for way in list(ways)[1:]:
                count = PEER_CALLS if way == "peer" else calls
                urls = ["--urls", model["url"], ways[way]["urls"][0]]
                found.setdefault(way, []).append(asked(name, *urls, "--calls", str(count))["added_ms"])
    median = statistics.median(found["ours"])
    line: Figures = {"measure": title, "ours": median, "ours_all": found["ours"], "at_most": 2.0}
    line |= {"reached": median <= 2.0}
    show(line | ({"peer": statistics.median(found["peer"]), "peer_all": found["peer"]} if peer else {}))


def memory(rounds: int, calls: int, peer: str | None) -> None:
    """The memory of the gateway's process after every tenth of the calls; flat from the third on, when all is warm."""
    tenth = 10_000 if calls >= 5_000 else 1_000
    sizes: list[float] = []
    used: list[float] = []
    with served(sys.executable, "model") as model, gateways(model, None, rollouts=tenth // 10) as ways:
        ours = ways["ours"]
        for _ in range(10):
            before = cpu_seconds(ours["pid"])
            asked("rate", "--urls", *ours["urls"], "--calls", str(tenth), "--concurrency", "8")
            sizes.append(rss_mb(ours["pid"]))
            used.append(round((cpu_seconds(ours["pid"]) - before) / tenth * 1e6))
    is_flat = sizes[-1] <= max(sizes[2] * FLAT_GROWTH, sizes[2] + FLAT_STEP_MB)
    line: Figures = {"measure": f"memory after {tenth:,} to {tenth * 10:,} recorded calls, MB", "ours": sizes[-1]}
    show(line | {"ours_all": sizes, "goal": "flat", "reached": is_flat, "gateway_cpu_us_a_call": used})


def cpu_seconds(pid: int | None) -> float:
    """Of a process up to now; it tells more than a rate where the cores are shared."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return round(int(fields["VmRSS"].split()[0]) / 1024, 1)


ROWS = [rate, rate_50ms, latency, first, memory]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--peer", action="store_true", help="measure agentlightning 0.3.0 too")
    parser.add_argument("--peer-folder", type=Path, default=HERE.parent / ".peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer calls")
    parser.add_argument("--only", default="", help="a word of the measures to run: rate, rate_50ms, latency, first, …")
    arguments = parser.parse_args()
    peer = peer_python(arguments.peer_folder) if arguments.peer else None
    for row in ROWS:
        if arguments.only in row.__name__:
            row(arguments.rounds, 1_000 if arguments.quick else 5_000, peer)


if __name__ == "__main__":
    main()
