"""Runs that an earlier version left: they are listed and shown as before, and killed ones come to their end."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sharpen import LLMProxy

from . import reading
from .packed import Packed
from .programs.recorded_agents import NOTES, answer_to
from .reading import Command, as_recorded, assert_near

PROGRAMS = Path(__file__).parent / "programs"
AGENT_RUNS = {"run-finished": "succeeded", "search": "succeeded", "search-killed": "killed", "grpo": "killed"}
RUNS = {**AGENT_RUNS, "run-simulator": "succeeded", "run-fine-tuning": "succeeded"}
PLACES = ("name", "path", "files", "size_bytes", "store_path")
"""What depends on where a run lies, and not on what is in it."""
DERIVED = ("seconds", "main_metrics", "curves", "reward", "reward_name")
"""What 0.2 works out from the same files in another way: a mean over the whole run is no longer a curve."""


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_listed(packed: Packed, command: Command, tmp_path: Path, name: str) -> None:
    packed.unpack(name, tmp_path)
    recorded = packed.recorded(name)["shown"]["run"]
    (found,) = command("runs", "list")
    assert found["name"] == name
    for key in ("state", "kind", "algorithm", "agent", "rollouts", "started"):
        assert found[key] == recorded[key], key
    if (recorded["reward_name"] or "").startswith("val/"):
        assert (found["reward_name"], found["reward"]) == (recorded["reward_name"], recorded["reward"])
    assert command("runs", "list", "--state", "failed") == []


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_shown_with_all_that_was_known_of_it(
    packed: Packed, command: Command, tmp_path: Path, name: str
) -> None:
    recorded, found = packed.recorded(name)["shown"]["run"], command("runs", "show", str(packed.unpack(name, tmp_path)))
    wanted = {key: value for key, value in recorded.items() if key not in (*PLACES, *DERIVED)}
    assert as_recorded(found, wanted) == wanted
    assert found["state"] == RUNS[name]
    curves = {key: points for key, points in recorded["curves"].items() if key != "reward_mean"}
    assert as_recorded(found["curves"], curves) == curves


@pytest.mark.parametrize("name", AGENT_RUNS)
def test_the_rollouts_of_a_run_are_listed_and_shown(
    packed: Packed, command: Command, tmp_path: Path, name: str
) -> None:
    recorded, found = packed.recorded(name)["shown"], reading.shown(packed.unpack(name, tmp_path), command)
    for was, now in zip(recorded["rollouts"]["rollouts"], found["rollouts"]["rollouts"], strict=True):
        if was["status"] == "requeuing":  # the reason is not stored: it is described again, with the worker's name
            worker = was.pop("error").partition("(worker ")[2]
            assert worker in now.pop("error")
    for key in ("rollouts", "total", "has_more"):
        assert as_recorded(found["rollouts"][key], recorded["rollouts"][key]) == recorded["rollouts"][key]
    assert as_recorded(found["first"], recorded["first"]) == recorded["first"]


def test_the_conversation_of_a_rollout_is_read(packed: Packed, command: Command, tmp_path: Path) -> None:
    run = packed.unpack("run-finished", tmp_path)
    rollouts = command("rollouts", "list", "--run", str(run), "--order", "oldest", "--mode", "val")["rollouts"]
    shown = command("rollouts", "show", rollouts[0]["rollout_id"], "--run", str(run))
    answers = [each["answer"]["text"] for each in shown["entries"] if each.get("answer")]
    assert answers == ["You said: What is 2 x 10?", "You said: Are you sure?"]
    (failed,) = command("rollouts", "list", "--run", str(run), "--status", "failed")["rollouts"]
    assert failed["error"] == "ValueError: 3 is not a number here"


def test_a_recorded_rollout_is_replayed_without_its_model(packed: Packed, command: Command, tmp_path: Path) -> None:
    run = packed.unpack("run-finished", tmp_path)
    agent = f"{PROGRAMS / 'recorded_agents.py'}:converse"
    rollouts = command("rollouts", "list", "--run", str(run), "--status", "succeeded")["rollouts"]
    for each in rollouts[:2]:
        replayed = command("replay", each["rollout_id"], "--run", str(run), "--agent", agent)
        assert replayed["now"] == {"status": "succeeded", "reward": each["reward"]}
        assert replayed["calls"] == {"recorded": 2, "answered": 2}


def test_calls_in_a_file_are_replayed_without_their_model(packed: Packed, tmp_path: Path) -> None:
    calls, recorded = packed.unpack("recording", tmp_path) / "calls.jsonl", packed.recorded("recording")
    with LLMProxy(mode="replay", record=calls) as gateway:
        llm = gateway.as_resource(model="small")
        assert {question: answer_to(llm, question) for question in recorded} == recorded


def test_rollouts_are_exported(packed: Packed, command: Command, tmp_path: Path) -> None:
    run, recorded = packed.unpack("run-finished", tmp_path), packed.recorded("run-finished")["shown"]
    command("rollouts", "export", str(tmp_path / "out.jsonl"), "--spans", "--run", str(run))
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert len(lines) == len(recorded["rollouts"]["rollouts"])


def test_the_best_prompt_of_a_search_is_taken(packed: Packed, command: Command, tmp_path: Path) -> None:
    run, recorded = packed.unpack("search", tmp_path), packed.recorded("search")
    command("runs", "best", str(run), "--out", str(tmp_path / "best"))
    assert (tmp_path / "best" / "best_prompt.txt").read_text() == recorded["search"]["best"]
    measured = command("eval", str(PROGRAMS / "few_shot.yaml"), "--run", str(run))
    assert (measured["status"], measured["rollouts"], measured["prompts_of"]) == ("succeeded", 8, "search")


def test_a_killed_search_comes_to_its_end_and_repeats_nothing(packed: Packed, tmp_path: Path) -> None:
    run, recorded = packed.unpack("search-killed", tmp_path), packed.recorded("search-killed")
    notes = tmp_path / "notes"
    words = ["train", str(PROGRAMS / "few_shot.yaml"), "--resume", str(run), "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "sharpen.cli", *words],
        env={**os.environ, NOTES: str(notes)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    whole = packed.recorded("search")
    assert as_recorded(reading.search_of(run), whole["search"]) == whole["search"]
    began = reading.began(notes)
    assert began
    assert not began.keys() & set(recorded["finished"])
    assert set(recorded["finished"]) < set(reading.finished(run))
    wanted = {each["rollout_id"] for each in whole["shown"]["rollouts"]["rollouts"]}
    assert set(reading.finished(run)) == wanted
    assert began == Counter(wanted - set(recorded["finished"]))


@pytest.mark.parametrize(
    ("name", "config", "longer"),
    [
        ("run-simulator", "simulator.yaml", "max_iters=5"),
        pytest.param("run-fine-tuning", "fine_tuning.yaml", "num_epochs=3", marks=pytest.mark.slow),
    ],
)
def test_a_run_of_the_command_line_is_made_longer(
    packed: Packed, command: Command, tmp_path: Path, name: str, config: str, longer: str
) -> None:
    run, recorded = packed.unpack(name, tmp_path), packed.recorded(name)
    model = [f"model_name={packed.unpack('model', tmp_path)}"] if config == "fine_tuning.yaml" else []
    command("train", str(PROGRAMS / config), *model, longer, "--resume", str(run))
    assert_near(reading.metric_rows(run), recorded["rows"])
