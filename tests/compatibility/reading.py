"""What is compared: the files of runs and trainings, what the command line says, and how versions may differ."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharpen import SQLiteStore

Row = dict[str, Any]
Command = Callable[..., Any]
CLOCK = ("second", "time")
# Other processors round otherwise; what is read wrongly differs by far more.
RELATIVE, ABSOLUTE = 1e-3, 1e-5
USER_DATA = ("input", "metadata", "attributes", "heartbeat_stats", "sampling_parameters")


def as_recorded(found: Any, recorded: Any) -> Any:
    """`found` without the fields that a later version has added to rows; what users wrote stays as it is."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        kept = {name: value for name, value in found.items() if name in recorded}
        return {name: kept[name] if name in USER_DATA else as_recorded(kept[name], recorded[name]) for name in kept}
    if isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        return [as_recorded(*pair) for pair in zip(found, recorded, strict=True)]
    return found


def assert_near(found: Any, recorded: Any, where: str = "") -> None:
    """Every number that was recorded is there and near; fields that were added since are not looked at."""
    if isinstance(recorded, dict):
        for name, value in recorded.items():
            assert name in found, f"{where}/{name}"
            assert_near(found[name], value, f"{where}/{name}")
    elif isinstance(recorded, list):
        assert len(found) == len(recorded), where
        for number, pair in enumerate(zip(found, recorded, strict=True)):
            assert_near(*pair, f"{where}/{number}")
    elif isinstance(recorded, float):
        assert found == pytest.approx(recorded, rel=RELATIVE, abs=ABSOLUTE), where
    else:
        assert found == recorded, where


def shown(run: Path, command: Command) -> Row:
    """What the commands that list and show runs and rollouts print as JSON."""
    rollouts = command("rollouts", "list", "--run", str(run), "--limit", "0", "--order", "oldest")
    first = rollouts["rollouts"][0]["rollout_id"]
    return {
        "run": command("runs", "show", str(run)),
        "rollouts": rollouts,
        "first": command("rollouts", "show", first, "--run", str(run), "--spans"),
    }


def finished(run: Path) -> list[str]:
    """The ids of the rollouts that the store of a run holds as finished."""

    async def read() -> list[str]:
        store = SQLiteStore(run / "store.db", read_only=True)
        found = await store.finished_rollouts(limit=10_000)
        await store.close()
        return [each.rollout_id for each in found.items]

    return asyncio.run(read())


def metric_rows(folder: Path) -> list[Row]:
    """The logged numbers of every step, without what the clock has a say in."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{name: value for name, value in line.items() if _is_metric(name, value)} for line in lines]
    return [row for row in rows if "step" in row and len(row) > 1]


def _is_metric(name: str, value: Any) -> bool:
    return isinstance(value, int | float) and not any(word in name for word in CLOCK)


def training_of(run: Path) -> Row:
    """What a training of the model behind an agent came to."""
    from .programs.training import model_sums

    newest = max((run / "checkpoints").glob("step_*"), key=lambda path: int(path.name.partition("_")[2]))
    return {"rows": metric_rows(run), "step": newest.name, "weights": model_sums(newest / "model")}


def fine_tuning_of(out: Path) -> Row:
    from .programs.training import model_sums

    names = sorted(path.name for path in out.glob("checkpoint-*"))
    return {"rows": metric_rows(out), "weights": model_sums(out), "checkpoints": names}


def search_of(run: Path) -> Row:
    """The candidates of a search for a prompt, and the text of the best."""
    prompts = run / "prompts"
    return {
        "candidates": json.loads((prompts / "candidates.json").read_text()),
        "best": (prompts / "best_prompt.txt").read_text(),
    }


def began(notes: Path) -> Counter[str]:
    """How often each rollout was begun."""
    return Counter(line.split()[1] for line in notes.read_text().splitlines() if line.startswith("began"))
