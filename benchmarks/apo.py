"""What the optimisers of prompts save, one JSON line per figure.

    python benchmarks/apo.py                        # races between prompts beside full evaluation, on simulated tasks
    python benchmarks/apo.py --round                # wall time of a round of APO with slow rollouts
    python benchmarks/apo.py --round --peer         # beside agentlightning 0.3.0, in an environment of its own (.peer)

The defaults of the race were chosen on tasks of seeds below 1,100,000; the figures are those of seeds from 3,000,000
on. Both sides read the same rewards, full evaluation all of them.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apo_simulation import FAMILIES, Task, make_task
from peer import measure, peer_python

from sharpen.algorithm.prompts.race import Race
from sharpen.stats import mean_interval

NEAR = 0.02  # of the range of the rewards, which is 0 to 1
BEAM = 4
FIRST_SEED = 3_000_000
HERE = Path(__file__).parent
ROUND = "apo_round.py"
FEW = 8
WORST_POINTS, MOST_SHARE = -3.0, 1 / 3


@dataclass(frozen=True)
class Outcome:
    """What both sides came to on one task."""

    task: Task
    full_quality: float
    race_quality: float
    best_quality: float
    full_rollouts: int
    race_rollouts: int

    @property
    def is_full_near(self) -> bool:
        return self.full_quality >= self.best_quality - NEAR

    @property
    def is_race_near(self) -> bool:
        return self.race_quality >= self.best_quality - NEAR

    @property
    def share(self) -> float:
        return self.race_rollouts / self.full_rollouts


# -- one task ------------------------------------------------------------------------------------------


def ranking_of_all(task: Task) -> list[int]:
    """Every candidate on every item, by mean reward."""
    return sorted(range(len(task.rewards)), key=lambda candidate: -sum(task.rewards[candidate]))


def ranking_of_race(task: Task, keep: int) -> tuple[list[int], int]:
    """By the race, and how many rollouts it took."""
    names = [str(candidate) for candidate in range(len(task.rewards))]
    race = Race(names, num_items=len(task.rewards[0]), keep=keep)
    rollouts = 0
    while (cut := race.next_slice()) is not None:
        for name in cut.names:
            for position in cut.items:
                race.add(name, position, task.rewards[int(name)][position])
        rollouts += len(cut.names) * len(cut.items)
    return [int(name) for name in race.ranking()], rollouts


def compare(task: Task, keep: int) -> Outcome:
    """With `keep` above 1 the qualities are the means of those that are kept."""
    ranking, rollouts = ranking_of_race(task, keep)
    return Outcome(
        task,
        full_quality=mean_quality(task, ranking_of_all(task)[:keep]),
        race_quality=mean_quality(task, ranking[:keep]),
        best_quality=statistics.fmean(sorted(task.qualities)[-keep:]),
        full_rollouts=len(task.rewards) * len(task.rewards[0]),
        race_rollouts=rollouts,
    )


def mean_quality(task: Task, candidates: Iterable[int]) -> float:
    return statistics.fmean(task.qualities[candidate] for candidate in candidates)


# -- lines ---------------------------------------------------------------------------------------------


def rollouts_line(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    used, total = sum(each.race_rollouts for each in outcomes), sum(each.full_rollouts for each in outcomes)
    median = statistics.median(each.share for each in outcomes)
    return {"rollouts": used, "of": total, "rollouts_share": round(used / total, 4), "median_share": round(median, 4)}


def near_line(title: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """How often each side's choice is near the best, in percent."""
    differences = [100.0 * (each.is_race_near - each.is_full_near) for each in outcomes]
    low, high = mean_interval(differences)
    return {
        "measure": title,
        "tasks": len(outcomes),
        "full": round(100 * statistics.fmean(each.is_full_near for each in outcomes), 2),
        "race": round(100 * statistics.fmean(each.is_race_near for each in outcomes), 2),
        "difference": round(statistics.fmean(differences), 2),
        "interval_95": [round(low, 2), round(high, 2)],
        **rollouts_line(outcomes),
    }


def beam_line(title: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The mean quality of those that are kept, in percent of that of the truly best."""
    differences = [100 * (each.race_quality - each.full_quality) / each.best_quality for each in outcomes]
    low, high = mean_interval(differences)
    return {
        "measure": title,
        "tasks": len(outcomes),
        "full": round(100 * statistics.fmean(each.full_quality / each.best_quality for each in outcomes), 2),
        "race": round(100 * statistics.fmean(each.race_quality / each.best_quality for each in outcomes), 2),
        "difference": round(statistics.fmean(differences), 3),
        "interval_95": [round(low, 3), round(high, 3)],
        **rollouts_line(outcomes),
    }


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


# -- the simulation ------------------------------------------------------------------------------------


def simulate(tasks: int, first_seed: int) -> None:
    made = [make_task(first_seed + number) for number in range(tasks)]
    one = [compare(task, 1) for task in made]
    line = near_line("within 2 % of the best, all tasks", one)
    goal = {"lower_end_above": WORST_POINTS, "rollouts_share_at_most": round(MOST_SHARE, 4)}
    is_reached = line["interval_95"][0] > WORST_POINTS and line["rollouts_share"] <= MOST_SHARE
    say({**line, "goal": goal, "reached": is_reached})
    for title, some in parts(one).items():
        say(near_line(f"within 2 % of the best, {title}", some))
    say(beam_line(f"quality of the {BEAM} kept, all tasks", [compare(task, BEAM) for task in made]))
    small = [make_task(first_seed + number, num_items=16) for number in range(tasks)]
    say(near_line("within 2 % of the best, 16 items", [compare(task, 1) for task in small]))
    say(beam_line(f"quality of the {BEAM} kept, 16 items", [compare(task, BEAM) for task in small]))


def parts(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes by family, by number of items and by kind of reward."""
    found: dict[str, list[Outcome]] = {}
    for kind in (family_of, items_of, reward_of):
        for each in sorted(outcomes, key=lambda outcome: kind(outcome.task)[0]):
            found.setdefault(kind(each.task)[1], []).append(each)
    return found


def family_of(task: Task) -> tuple[int, str]:
    return list(FAMILIES).index(task.family), task.family


def items_of(task: Task) -> tuple[int, str]:
    return len(task.rewards[0]), f"{len(task.rewards[0])} items"


def reward_of(task: Task) -> tuple[int, str]:
    return int(task.is_binary), "binary rewards" if task.is_binary else "graded rewards"


# -- a round -------------------------------------------------------------------------------------------


def time_round(peer: str | None) -> None:
    """With room for all rollouts at once, then with few at a time, which the peer can have as well."""
    all_at_once = measure(ROUND, sys.executable, "sharpen", ["--at-a-time", "512"])
    ratio = all_at_once["round_seconds"] / all_at_once["slowest_branch_seconds"]
    say({"measure": "a round of APO, all rollouts at once", **all_at_once, "times_slowest_branch": round(ratio, 2)})
    few = ["--at-a-time", str(FEW)]
    ours = measure(ROUND, sys.executable, "sharpen", few)
    say({"measure": f"a round of APO, {FEW} rollouts at a time", **ours})
    if peer is not None:
        theirs = measure(ROUND, peer, "agentlightning", few)
        ratio = theirs["round_seconds"] / ours["round_seconds"]
        say({"measure": f"the peer's round of APO, {FEW} runners", **theirs, "ratio": round(ratio, 1)})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tasks", type=int, default=2000, help="simulated tasks")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of the simulated tasks")
    parser.add_argument("--round", action="store_true", help="time a round with slow rollouts instead")
    parser.add_argument("--peer", action="store_true", help="time the peer's round too, which takes minutes")
    parser.add_argument("--peer-folder", type=Path, default=HERE.parent / ".peer", help="its environment")
    arguments = parser.parse_args()
    if arguments.round:
        time_round(peer_with_apo(arguments.peer_folder) if arguments.peer else None)
    else:
        simulate(arguments.tasks, arguments.first_seed)


def peer_with_apo(folder: Path) -> str:
    """Its APO needs a package more."""
    python = peer_python(folder)
    has_poml = subprocess.run([python, "-c", "import poml"], capture_output=True, check=False).returncode == 0
    if not has_poml:
        subprocess.run([python, "-m", "pip", "install", "-q", "poml"], check=True)
    return python


if __name__ == "__main__":
    main()
