"""The demo: its figures are those of its rollouts, and it runs through the whole stack."""

import asyncio
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from calculator_agent import Task, plain_task, story_tasks
from demo import Outcome, Score, last_line, score, scores_table
from rich.console import Console

from sharpen import SQLiteStore
from sharpen.semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from sharpen.stats import wilson_interval
from tests.archive.internals import RunEntry, summaries

from .programs import run_program, the_run

LAST_LINE = (
    r"held-out exact match: before ([01]\.\d\d) after ([01]\.\d\d) \(n=(\d+), 95% interval ([01]\.\d\d)-([01]\.\d\d)\)"
)


def outcomes_of(rewards: dict[int, list[float]], task: Task) -> list[Outcome]:
    return [
        Outcome(f"ro-{step}-{n}", step, task, value) for step, row in rewards.items() for n, value in enumerate(row)
    ]


def test_the_figures_are_counted_by_kind_and_step() -> None:
    plain = outcomes_of({0: [1.0, 0.0, 0.0, 0.0], 9: [1.0, 1.0, 1.0, 0.0]}, plain_task(73, "times", 81))
    stories = outcomes_of({0: [0.0, 0.0], 9: [1.0, 0.0]}, story_tasks(1, seed=1)[0])
    outcomes = [*plain, *stories]
    assert score(outcomes, "plain", step=0) == Score(right=1, count=4)
    assert score(outcomes, "plain", step=9) == Score(right=3, count=4)
    assert score(outcomes, "story", step=9) == Score(right=1, count=2)
    low, high = wilson_interval(3, 4)
    assert last_line(outcomes, 9) == (
        f"held-out exact match: before 0.25 after 0.75 (n=4, 95% interval {low:.2f}-{high:.2f})"
    )
    screen = io.StringIO()
    Console(file=screen, width=100).print(scores_table(outcomes, 9))
    rows = [re.split(r"\s*│\s*", line.strip("│ \n")) for line in screen.getvalue().splitlines() if "│" in line]
    assert rows == [
        ["held-out questions", "4", str(Score(1, 4)), str(Score(3, 4))],
        ["word problems", "2", str(Score(0, 2)), str(Score(1, 2))],
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_demo_goes_through_the_whole_stack(tmp_path: Path) -> None:
    few = ("--steps", "2", "--tasks-per-step", "3", "--group-size", "4", "--questions", "8", "--stories", "3")
    done = run_program("demo", tmp_path, *few, timeout_seconds=870)
    lines = done.stdout.splitlines()
    found = re.fullmatch(LAST_LINE, lines[-1])
    assert found is not None, lines[-1]
    assert found[3] == "8"
    assert "step 1 of 2" in done.stderr
    assert "step 2 of 2" in done.stderr
    run = the_run(tmp_path)
    assert (run / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "checkpoints" / "step_2" / "model" / "model.safetensors").exists()
    shares = asyncio.run(shares_right(run / "store.db", steps=(0, 2)))
    assert [f"{share:.2f}" for share in shares] == [found[1], found[2]]
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert [row["val/plain"] for row in rows if "val/plain" in row] == shares
    assert summaries(RunEntry.of(run))["val/plain"].final == shares[1]  # what `runs show` and the dashboard show
    shutil.rmtree(tmp_path)  # models take 0.5 GB each


async def shares_right(path: Path, *, steps: tuple[int, int]) -> list[float]:
    """From the store: what the last line must say. Every rollout has one recorded call with its token ids."""
    store = SQLiteStore(path)
    rollouts = list(await store.query_rollouts(status_in=["succeeded"]))
    assert len(rollouts) == 2 * 3 * 4 + 2 * (8 + 3)
    for each in rollouts:
        (call,) = await store.query_spans(each.rollout_id, name=SHARPEN_LLM_CALL)
        assert call.attributes[LightningLLMAttributes.RESPONSE_TOKEN_IDS]
    await store.close()
    plain = [each for each in rollouts if each.mode == "val" and each.input["kind"] == "plain"]
    return [sum(each.reward for each in plain if each.metadata["step"] == step) / 8 for step in steps]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_demo_learns_with_every_seed(tmp_path: Path, seed: int) -> None:
    settings = ("--seed", str(seed), "--questions", "100", "--stories", "30")
    found = re.fullmatch(
        LAST_LINE, run_program("demo", tmp_path, *settings, timeout_seconds=1150).stdout.splitlines()[-1]
    )
    assert found is not None
    before, after = float(found[1]), float(found[2])
    assert 0.2 < before < 0.6
    assert after >= 0.9
    shutil.rmtree(tmp_path)
