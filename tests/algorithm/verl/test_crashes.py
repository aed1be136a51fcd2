"""Training runs that are killed, interrupted, starved, and started again."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.llm.tiny_models import write_tiny_model

from .test_training import lines
from .training_programs import TrainingPrograms, eventually

Rows = list[dict[str, Any]]
HERE = {"strategy": "shm", "n_runners": 1}
"""For what is not about processes: all in one."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def programs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPrograms]:
    found = TrainingPrograms(tmp_path_factory.mktemp("programs"), tiny)
    yield found
    found.close()


@pytest.fixture(scope="module")
def whole(programs: TrainingPrograms) -> Rows:
    """The metrics of a run that nothing happened to."""
    with programs.started("whole", trainer=HERE) as program:
        assert program.wait() == 0, program.output
    return lines(program.run)


def _lines(run: Path) -> Rows:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def same(found: Rows, wanted: Rows) -> bool:
    return len(found) == len(wanted) and all(
        ours == pytest.approx(theirs, rel=1e-5, abs=1e-6) for ours, theirs in zip(found, wanted, strict=True)
    )


# -- killed ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_comes_to_the_same_numbers(
    programs: TrainingPrograms, whole: Rows
) -> None:
    chance, narrow = random.Random(3), {"runner": {"type": "Runner", "concurrency": 2}}  # so that some are queued
    for _ in range(2):
        with programs.started("killed", trainer=narrow) as program:
            target = len(program.notes) + chance.randint(10, 70)
            eventually(lambda: len(program.notes) >= target, "some rollouts")  # noqa: B023 - used at once
        began = program.count("began")
        times = {rollout: began[rollout] for rollout in program.finished()}
        assert times
    with programs.started("killed") as program:
        assert program.wait() == 0, program.output
    began = program.count("began")
    assert len(began) == 96
    assert {rollout: began[rollout] for rollout in times} == times  # what was finished has not run again
    assert same(lines(program.run), whole)
    assert _leftovers(program.run) == []


def _leftovers(run: Path) -> list[str]:
    return [path.name for path in (run / "checkpoints").rglob(".*")]


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_written_or_removed_costs_nothing(programs: TrainingPrograms, whole: Rows) -> None:
    options = {"trainer": HERE, "grpo": {"save_every": 1, "config": {"trainer.max_actor_ckpt_to_keep": 1}}}
    points = (
        r"open .*/\.step_2\.new/.*json",
        r"os.rename .*/\.step_3\.new .*/step_3",
        r"os.rename .*/step_3 .*/\.step_3\.gone",
        r"shutil.rmtree .*/\.step_4\.gone",
    )
    for point in points:
        with programs.started("points", **options, die_at=point) as program:
            assert program.wait() == -signal.SIGKILL, program.output
    with programs.started("points", **options) as program:
        assert program.wait() == 0, program.output
    assert same(lines(program.run), whole)
    assert _leftovers(program.run) == []
    assert sorted(path.name for path in (program.run / "checkpoints").glob("step_*")) == ["step_6"]


@pytest.mark.slow
def test_whoever_else_is_killed_the_run_goes_on_and_nothing_is_lost(programs: TrainingPrograms) -> None:
    with programs.started("others", grpo={"steps": 4}) as program:
        for number, words in enumerate(("execution.runners", "llm_proxy", " store")):
            eventually(lambda: len(program.notes) > 32 * number + 5, "a step")  # noqa: B023 - used at once
            victim = int(program.notes[-1].split()[-1]) if number == 0 else program.child(words)
            os.kill(victim, signal.SIGKILL)
        assert program.wait() == 0, program.output
    rows = lines(program.run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["train/rollouts"] == 16 for row in rows)
    assert sum(row["train/lost"] + row["train/failed"] for row in rows) == 0
    assert len(program.count("ended")) == 64


# -- interrupted -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sign", "code", "options", "wait_for"),
    [
        (signal.SIGINT, {-signal.SIGINT, 1, 130}, {"slow_training": 2}, "training"),
        (signal.SIGTERM, {143}, {"slow_loading": True}, "loading"),
        (signal.SIGTERM, {143}, {}, "began"),
    ],
    ids=["training", "loading", "rollouts"],
)
def test_a_signal_ends_a_run_in_order_and_it_can_be_resumed(
    programs: TrainingPrograms,
    whole: Rows,
    sign: signal.Signals,
    code: set[int],
    options: dict[str, Any],
    wait_for: str,
) -> None:
    with programs.started(f"signal-{wait_for}", **options) as program:
        eventually(lambda: any(line.startswith(wait_for) for line in program.notes), wait_for)
        began = time.monotonic()
        program.send(sign)
        assert program.wait() in code, program.output
        assert time.monotonic() - began < 20
        assert program.result["status"] == "interrupted"
    with programs.started(f"signal-{wait_for}", trainer=HERE) as program:
        assert program.wait() == 0, program.output
    assert same(lines(program.run), whole)


# -- agents and engine -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_outlives_agents_that_fail_hang_or_take_their_runner_along(programs: TrainingPrograms) -> None:
    rule = {"timeout_seconds": 4, "max_attempts": 1, "retry_condition": []}
    with programs.started("naughty", agent="naughty", trainer={"rollout_config": rule}) as program:
        assert program.wait() == 0, program.output
    rows = [row for row in _lines(program.run) if "train/rollouts" in row and "step" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["train/failed"] for row in rows] == [0, 4, 0, 4, 0, 0]
    assert [row["train/lost"] for row in rows] == [0, 0, 16, 0, 3, 0]
    assert [row["train/weights_version"] for row in rows] == [1, 2, 2, 3, 4, 5]
    assert "train/reward_mean" not in rows[2]


# -- the disk ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_ends_the_run_clearly_and_the_earlier_checkpoint_is_good(
    programs: TrainingPrograms, whole: Rows
) -> None:
    with programs.started("full", grpo={"save_every": 1}, largest_file=200_000) as program:
        assert program.wait() == 1
    assert re.search(r"TrainingError: the checkpoint of step 2 cannot be written .*checkpoints", program.output)
    assert program.result["status"] == "failed"
    assert _leftovers(program.run) == []
    with programs.started("full", trainer=HERE) as program:
        assert program.wait() == 0, program.output
    assert same(lines(program.run), whole)
