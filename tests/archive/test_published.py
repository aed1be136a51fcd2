"""After a search for prompts, what a run is judged by is the prompt that the user gets, not the one tried last."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sharpen import PromptTemplate, Trainer
from sharpen.cli import main
from sharpen.stats import wilson_interval
from tests.archive.internals import RunEntry, Score, best_prompts, compare

from ..algorithm.apo.scenes import CRITIC, TRAIN, VAL, agent, edited, make
from ..algorithm.prompts.scripted_openai import ScriptedOpenAI

SEED = "Answer {question} briefly, exactly."  # good enough for 4 of 10 tasks


def worse(request: dict[str, Any]) -> str:
    """An editor that knows no good words."""
    return "It is too long." if request["model"] == CRITIC else edited("Answer {question}, please.")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "search"
    with ScriptedOpenAI(worse) as server:
        apo = make(server, beam_rounds=1)
        resources = {"prompt": PromptTemplate(SEED)}
        Trainer(strategy="shm", algorithm=apo, run_dir=folder, initial_resources=resources).fit(agent, TRAIN, VAL)
    return folder


def val_score(folder: Path) -> Score:
    (found,) = asyncio.run(compare([RunEntry.of(folder)])).runs
    score = found.score("val")
    assert score is not None
    return score


def without(folder: Path, target: Path, *names: str) -> Path:
    """A copy of a run whose result tells no interval, and without some of its files."""
    import shutil

    shutil.copytree(folder, target)
    result = json.loads((folder / "result.json").read_text())
    result["metrics"] = {"rollouts": result["metrics"]["rollouts"]}
    (target / "result.json").write_text(json.dumps(result))
    for name in names:
        (target / name).unlink()
    return target


def test_the_final_reward_is_that_of_the_best_prompt_with_the_interval_of_the_run(run: Path) -> None:
    score = val_score(run)
    assert score.versions > 1
    assert (score.final.mean, score.final.tasks) == (0.4, 20)
    assert (score.final.low, score.final.high) == pytest.approx(wilson_interval(8, 20))
    assert score.best == score.final


def test_it_is_found_in_the_store_where_the_run_reported_no_interval(run: Path, tmp_path: Path) -> None:
    score = val_score(without(run, tmp_path / "untold"))
    assert (score.final.mean, score.final.interval, score.final.rollouts) == (0.4, "wilson", 20)


def test_of_a_run_that_was_killed_the_best_candidate_counts(run: Path, tmp_path: Path) -> None:
    killed = without(run, tmp_path / "killed", "result.json", "metrics.jsonl")
    assert RunEntry.of(killed).state == "killed"
    assert best_prompts(RunEntry.of(killed)) == {"prompt": PromptTemplate(SEED)}
    assert val_score(killed).final.mean == 0.4
    (killed / "prompts" / "candidates.json").write_text("{")
    assert best_prompts(RunEntry.of(killed)) == {}


def test_the_command_shows_that_reward_with_its_interval(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", str(run)]) == 0
    assert "0.4 (val/reward_mean; 95 %: 0.2188 to 0.6134)" in capsys.readouterr().out
