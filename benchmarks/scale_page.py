"""Puts the kept figures and the simulator's predictions into `docs/ideas/scale.md` and `benchmarks/README.md`.

    python benchmarks/scale.py | tee benchmarks/results/scale.jsonl
    python benchmarks/queue_costs.py --write | tee benchmarks/results/check.jsonl
    python benchmarks/scale_page.py                      # simulates for about a minute, then writes

Only what stands between `<!-- name: begin -->` and `<!-- name: end -->` is replaced.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from queue_plan import COSTS, Cost, Costs, Plan
from queue_simulator import settled, simulate, table

HERE = Path(__file__).parent
PAGE, README = HERE.parent / "docs" / "ideas" / "scale.md", HERE / "README.md"
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}
OPERATIONS = {
    "turn": "a turn: outcome with 3 spans of 1 kB, and the next claim",
    "span": "each further span",
    "enqueue": "enqueue, each of 50",
    "heartbeat": "a heartbeat",
    "poll": "a poll that finds nothing",
    "wake": "being woken, and the claim",
}
Rows = list[dict[str, Any]]


def lines_of(name: str) -> Rows:
    path = HERE / "results" / name
    if not path.exists():
        sys.exit(f"{path} is not there: the commands at the top of this file make it")
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def grid(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 20 else f"{value:,.1f}"


def share(value: float) -> str:
    return f"{value * 100:.0f} %" if value >= 0.1 else f"{value * 100:.1f} %"


def milliseconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1000:,.1f} s" if value >= 1000 else f"{value:,.1f} ms"


# -- the tables --------------------------------------------------------------------------------------


def costs_table(kept: dict[str, Any]) -> str:
    rows = []
    for kind, figures in kept.items():
        costs = Costs.of(figures)
        for name, words in OPERATIONS.items():
            cost: Cost = getattr(costs, name)
            rows.append([STORES[kind], words, micro(cost.client), micro(cost.server), micro(cost.database)])
    return grid(["store", "microseconds of CPU for", "client", "store server", "database"], rows)


def capacity_table(kept: dict[str, Any]) -> str:
    """What one of each part could do if nothing else were to be done."""
    rows = []
    for kind, figures in kept.items():
        costs = Costs.of(figures)
        per_day = figures["bytes_of_turn"] * 86_400 / 1e9
        rows.append(
            [
                STORES[kind], number(1 / costs.turn.server), number(1 / costs.span.server),
                number(1 / costs.turn.database) if costs.turn.database else "in the server",
                number(1 / costs.commit_seconds) if costs.commit_seconds else "not synced",
                number(10 / costs.heartbeat.server), number(5 / costs.poll.server),
                f"{figures['bytes_of_turn']:,} + {figures['bytes_of_span']:,} a span", f"{per_day:.2f} GB",
            ]
        )  # fmt: skip
    head = ["store", "turns/s, one server", "spans/s, one server", "turns/s, one core of the database", "syncs/s",
            "runners whose heartbeats fill a server", "idle runners whose polls fill a server",
            "bytes kept of a rollout of 3 spans", "a day at 1 rollout/s"]  # fmt: skip
    return grid(head, rows)


def predictions_table(costs: Costs) -> str:
    rows = []
    for row in table(Plan(1, 1.0, costs), load=0.8):
        part = row["at_rate"]
        keeps_up = part["queued"] < 0.1 * part["enqueued"]
        rows.append(
            [
                f"{row['runners']:,}", f"{row['agent_seconds']:g} s", number(row["rollouts_per_second"]),
                number(row["spans_per_second"]), share(row["runners_busy"]), share(row["server_busy"]),
                share(row["database_busy"]), share(row["disk_busy"]), row["first_to_break"],
                f"{milliseconds(part['wait_median_ms'])}; {milliseconds(part['wait_p99_ms'])}"
                if keeps_up else "grows without end",
            ]
        )  # fmt: skip
    head = ["runners", "agents of", "rollouts/s", "spans/s", "runners busy", "server", "database", "disk",
            "limit", "wait at 80 %: median; p99"]  # fmt: skip
    return grid(head, rows)


def servers_table(costs: Costs, runners: int = 10_000, agent_seconds: float = 10.0) -> str:
    rows = []
    for servers in (1, 2, 4, 8):
        plan = settled(Plan(runners, agent_seconds, costs, servers=servers))
        seen = simulate(plan)
        open_queue = simulate(dataclasses.replace(plan, rate=0.8 * runners / agent_seconds))
        keeps_up = open_queue.queued < 0.1 * open_queue.enqueued
        wait = f"{milliseconds(open_queue.wait_median_ms)}; {milliseconds(open_queue.wait_p99_ms)}"
        rows.append([
            str(servers), number(seen.rollouts_per_second), share(seen.runners_busy), share(seen.server_busy),
            share(seen.database_busy), share(seen.disk_busy), seen.first_to_break,
            wait if keeps_up else "grows without end",
        ])  # fmt: skip
    head = ["servers", "rollouts/s", "runners busy", "busiest server", "database", "disk", "limit",
            "wait at 80 %: median; p99"]  # fmt: skip
    return grid(head, rows)


def check_table(lines: Rows) -> str:
    rows = [
        [
            line["check"], number(line["predicted"]), number(line["measured"]), f"{line['error_percent']:+.0f} %",
            f"{line['cpu_ms_of_turn']:.2f}", ", ".join(f"{value:.2f}" for value in line["cpu_ms_measured"]),
            ", ".join(str(value) for value in line["cores_got"]),
        ]
        for line in lines if "check" in line
    ]  # fmt: skip
    head = ["", "predicted /s", "measured /s", "error", "ms of CPU a turn, alone", "in the check", "cores used"]
    return grid(head, rows)


def commits_table(lines: Rows) -> str:
    (line,) = (line for line in lines if line.get("unit") == "commits/s")
    return grid(["", "commits/s"], [[name, number(value)] for name, value in line.items() if "connection" in name])


def waiting_table(lines: Rows) -> str:
    rows = [
        [
            line["measure"], f"{line['wait_median_ms']} ms", f"{line['wait_p99_ms']} ms",
            f"{line['wake_ups_per_item']:.2f}", "reached" if line["reached"] else "**short**",
        ]
        for line in lines if "wake_ups_per_item" in line
    ]  # fmt: skip
    return grid(["", "wait, median", "p99", "wake-ups an item", "goal: one, and 50 ms"], rows)


def idle_table(lines: Rows) -> str:
    rows = [
        [line["measure"], number(line["looks_per_second"]), *(_cores(line, part) for part in ("servers", "database"))]
        for line in lines if "looks_per_second" in line
    ]  # fmt: skip
    return grid(["", "looks into the queue a second", "cores of the servers", "cores of the database"], rows)


def _cores(line: dict[str, Any], part: str) -> str:
    return str(line["cores_used"].get(part, ""))


def rates_table(lines: Rows) -> str:
    rows = []
    for line in lines:
        if "median" in line:
            values = ", ".join(number(value) for value in line["all"])
            seen, goal = f"{number(line['median'])} ({values}) {line['unit']}", f"{line.get('goal', 0):,}"
        elif "ratio" in line:
            seen = f"{line['ratio']:.2f} ({line['ray_per_second']} and {line['client_server_per_second']} rollouts/s)"
            goal = f"at most {line['goal']}"
        else:
            continue
        verdict = [goal, "reached" if line["reached"] else "**short**"] if "goal" in line else ["", ""]
        rows.append([line["measure"], seen, *verdict])
    return grid(["measure", "median (rounds)", "goal", ""], rows)


# -- writing -----------------------------------------------------------------------------------------


def put(path: Path, blocks: dict[str, str]) -> None:
    text = path.read_text()
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        if begin not in text or end not in text:
            sys.exit(f"{path.name} has no place for {name}: put {begin.strip()} and {end} there")
        text = f"{text.partition(begin)[0]}{begin}{block}\n{end}{text.partition(end)[2]}"
    path.write_text(text)


def main() -> None:
    kept, scale, check = json.loads(COSTS.read_text()), lines_of("scale.jsonl"), lines_of("check.jsonl")
    costs = Costs.of(kept["postgres"])
    page = {
        "costs": costs_table(kept), "capacity": capacity_table(kept), "check": check_table(check),
        "commits": commits_table(check),
        "waiting": waiting_table(scale), "idle": idle_table(scale),
        "predictions": predictions_table(costs), "servers": servers_table(costs),
    }  # fmt: skip
    put(PAGE, page)
    put(README, {"scale": rates_table(scale)})


if __name__ == "__main__":
    main()
