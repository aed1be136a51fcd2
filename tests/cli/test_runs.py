"""`sharpen runs`: list, show, compare, best, rm."""

import json
import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.cli import main
from sharpen.runs import RunFolder
from tests.cli.internals import sparkline

from ..archive.run_scenes import always, dev_run, failed_run, prompt_run, simulator_run, tuned_run, write_json
from ..logs import forget_logging


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("SHARPEN_LOG", "SHARPEN_CURRENT_ROLE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    forget_logging()
    yield tmp_path / "runs"
    forget_logging()


class Terminal:
    """What a command printed, and how it ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output; what stood on standard error is kept in `said`."""
        self._capsys.readouterr()
        assert main(["runs", *arguments]) == code, self._capsys.readouterr().err
        output, self.said = self._capsys.readouterr()
        return output

    def value(self, *arguments: str, code: int = 0) -> Any:
        """The JSON that a program would read."""
        return json.loads(self.run(*arguments, "--json", code=code))


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def test_nothing_to_list_is_said(terminal: Terminal, runs: Path) -> None:
    assert terminal.run() == ""
    assert f"no runs in {str(runs)!r}" in terminal.said
    assert terminal.value("list") == []


def test_runs_are_listed_and_filtered(terminal: Terminal, runs: Path) -> None:
    dev_run(runs / "20261115-100000-baseline")
    failed_run(runs / "20261115-110000-broken")
    simulator_run(runs / "20261115-120000-sim")
    os.utime(runs / "20261115-100000-baseline" / ".lock", (100, 100))
    shown = terminal.run()
    header = shown.splitlines()[0].split()
    assert header == ["run", "state", "algorithm", "started", "duration", "rollouts", "reward"]
    baseline = next(line for line in shown.splitlines() if "baseline" in line)
    assert "succeeded" in baseline
    assert "Baseline" in baseline
    assert "12" in baseline
    assert baseline.endswith(" 0.5")
    assert terminal.run("list") == shown
    assert [each["name"] for each in terminal.value("--state", "failed")] == ["20261115-110000-broken"]
    assert [each["name"] for each in terminal.value("list", "--kind", "simulator")] == ["20261115-120000-sim"]
    assert len(terminal.value("--limit", "1", "list")) == 1
    terminal.run("--limit", "2")
    assert "1 older run not shown" in terminal.said
    assert terminal.run("--state", "killed") == ""
    assert "none of the 3" in terminal.said


def test_a_program_gets_one_value_wherever_the_option_stands(terminal: Terminal, runs: Path) -> None:
    simulator_run(runs / "sim")
    first = json.loads(terminal.run("--json", "list"))
    assert first == json.loads(terminal.run("list", "--json")) == json.loads(terminal.run("--json"))
    assert first[0]["metrics"] == {"reward": 1.0, "val/reward": 2.0}
    assert first[0]["reward_name"] == "val/reward"


def test_a_run_is_shown_with_its_parts_curves_and_files(terminal: Terminal, runs: Path) -> None:
    prompt_run(runs / "run")
    shown = terminal.run("show")
    for words in (
        "run  succeeded",
        "agent      measure",
        "val tasks",
        "val/reward_mean",
        "▁█",
        str(runs / "run" / "store.db"),
    ):
        assert words in shown
    value = terminal.value("show", "last")
    assert value["config"]["datasets"]["val"]["size"] == 3
    assert value["curves"]["train/loss"]["values"] == [1.0, 0.5, 1 / 3]
    assert value["main_metrics"]["val/reward_mean"]["best_step"] == 2
    assert value["files"]["folder"] == str(runs / "run")
    assert value["size_bytes"] > 0


def test_a_run_by_itself_is_shown_and_a_misspelt_command_is_none(terminal: Terminal, runs: Path) -> None:
    simulator_run(runs / "20261115-120000-sim")
    simulator_run(runs / "mine")
    for word in ("last", "20261115", str(runs / "mine")):
        assert "max_iters" in terminal.run(word)
    assert terminal.value("mine")["name"] == json.loads(terminal.run("--json", "mine"))["name"] == "mine"
    terminal.run("1116", code=3)
    assert "the nearest are" in terminal.said
    terminal.run("sho", code=2)
    assert "did you mean 'show'?" in terminal.said


def test_an_error_is_readable_and_its_text_steers_nothing(terminal: Terminal, runs: Path) -> None:
    failed_run(runs / "run")
    shown = terminal.run("show", "run")
    assert "error:\n  ValueError: the learning rate is [red]wrong[/red]\n  second line" in shown
    assert "Traceback" not in shown
    assert "Traceback" in terminal.run("show", "run", "--traceback")
    result = json.loads((runs / "run" / "result.json").read_text())
    write_json(runs / "run" / "result.json", {**result, "error": "ValueError: \x1b[2Jgone\x07"})
    assert "ValueError: \\x1b[2Jgone\\x07" in terminal.run("show", "run")


def test_the_name_of_a_run_steers_nothing(terminal: Terminal, runs: Path) -> None:
    dev_run(runs / "odd\x1b]0;gone\x07")
    assert "\x1b" not in terminal.run("show", "last")


def test_an_interrupted_run_is_no_error(terminal: Terminal, runs: Path) -> None:
    dev_run(runs / "run")
    path = runs / "run" / "result.json"
    result = json.loads(path.read_text())
    write_json(path, {**result, "status": "interrupted", "error": "Traceback\nKeyboardInterrupt"})
    shown = terminal.run("show", "run")
    assert "was interrupted" in shown
    assert "KeyboardInterrupt" not in shown


def test_the_warnings_of_a_run_are_shown_and_steer_nothing(terminal: Terminal, runs: Path) -> None:
    dev_run(runs / "run")
    path = runs / "run" / "result.json"
    write_json(path, {**json.loads(path.read_text()), "warnings": ["reward fell\x1b[2J to -16"]})
    assert "reward fell\\x1b[2J to -16" in terminal.run("show", "run")
    assert terminal.value("show", "run")["warnings"] == ["reward fell\x1b[2J to -16"]


def test_a_killed_run_says_how_to_go_on(terminal: Terminal, runs: Path) -> None:
    folder = RunFolder.create(run_dir=runs / "run")
    folder.write_config({"components": {}})
    folder.release()
    assert "resume=" in terminal.run("show", "run")


def test_a_killed_run_of_a_configuration_goes_on_with_it(terminal: Terminal, runs: Path) -> None:
    folder = RunFolder.create(run_dir=runs / "run")
    folder.write_config({"kind": "simulator", "components": {}})
    folder.release()
    (runs / "run" / "train.yaml").write_text("kind: simulator\n")
    assert f"`sharpen train {runs / 'run' / 'train.yaml'} --resume {runs / 'run'}`" in terminal.run("show", "run")


def test_runs_of_all_kinds_are_shown(terminal: Terminal, runs: Path) -> None:
    simulator_run(runs / "sim")
    tuned_run(runs / "tuned")
    assert "max_iters" in terminal.run("show", "sim")
    shown = terminal.run("show", "tuned")
    assert "learning_rate" in shown
    assert "fine-tuning" in shown


def test_runs_are_compared(terminal: Terminal, runs: Path) -> None:
    dev_run(runs / "first")
    dev_run(runs / "second", always)
    shown = terminal.run("compare", "first", "second")
    for words in ("0.500 [0.237, 0.763]", "1.000 [0.722, 1.000]", "B - A", "+0.500", "B is better", "agent.name"):
        assert words in shown
    value = terminal.value("compare", "first", "second")
    assert value["differences"][0]["tasks"] == 10
    assert value["settings"] == [{"name": "agent.name", "values": ["is_even", "always"]}]
    assert "'first'" in terminal.value("compare", "first", "fir", code=2)["error"]["message"]


def test_the_best_is_exported(terminal: Terminal, runs: Path, tmp_path: Path) -> None:
    tuned_run(runs / "tuned")
    shown = terminal.run("best", "tuned", "--out", str(tmp_path / "out"))
    assert f"{tmp_path / 'out' / 'model'}/" in shown
    value = terminal.value("best", "tuned", "--out", str(tmp_path / "other"))
    assert str(tmp_path / "other" / "model") in value["files"]
    error = terminal.value("best", "tuned", "--out", str(tmp_path / "out"), code=2)["error"]
    assert error["type"] == "ConfigError"
    terminal.run("best", "tuned", code=2)
    assert "--out" in terminal.said


def test_the_best_of_the_last_run_is_that_of_one_that_trained(terminal: Terminal, runs: Path, tmp_path: Path) -> None:
    assert "there are no runs" in terminal.value("best", "last", "--out", "x", code=3)["error"]["message"]
    dev_run(runs / "measured", name="eval")
    error = terminal.value("best", "last", "--out", str(tmp_path / "out"), code=3)["error"]["message"]
    assert repr(str(runs)) in error
    assert "measured" in error
    tuned_run(runs / "tuned")
    os.utime(runs / "tuned", (1, 1))
    assert terminal.value("list")[0]["name"] == "measured"
    assert terminal.value("best", "last", "--out", str(tmp_path / "out"))["run"] == "tuned"


def test_an_unknown_run_is_answered_with_the_nearest(terminal: Terminal, runs: Path) -> None:
    simulator_run(runs / "20261115-120000-sim")
    for command in (["show"], ["compare", "last"], ["best", "--out", "x"], ["rm", "--yes"]):
        terminal.run(*command, "20261115-120000-sin", code=3)
        assert "the nearest are 20261115-120000-sim" in terminal.said


def test_removing_needs_a_yes_where_nobody_can_be_asked(terminal: Terminal, runs: Path) -> None:
    for name in ("one", "two", "three"):
        simulator_run(runs / name)
    terminal.run("rm", "one", code=2)
    assert "--yes" in terminal.said
    assert "--yes" in terminal.value("rm", "one", code=2)["error"]["message"]
    assert (runs / "one").exists()
    assert terminal.value("rm", "one", "two", "one", "--yes") == {"removed": ["one", "two"]}
    assert [path.name for path in runs.iterdir()] == ["three"]


def test_what_the_system_refuses_is_told_with_what_was_wanted(terminal: Terminal, runs: Path) -> None:
    """Here a folder stands where the lock should be; a read-only disk is told in the same way."""
    dev_run(runs / "one")
    (runs / "one" / ".lock").unlink()
    (runs / "one" / ".lock").mkdir()
    terminal.run("rm", "one", "--yes", code=1)
    assert terminal.said.startswith("sharpen runs: ")
    assert terminal.said.endswith(" 'one': Is a directory\n")


def test_of_several_runs_none_is_removed_if_one_cannot_be(terminal: Terminal, runs: Path) -> None:
    simulator_run(runs / "one")
    folder = RunFolder.create(run_dir=runs / "busy")
    folder.write_config({"components": {}})
    terminal.run("rm", "one", "busy", "--yes", code=1)
    assert "'busy' is running" in terminal.said
    folder.release()
    assert (runs / "one").exists()


@pytest.mark.parametrize(("answer", "is_removed"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False)])
def test_on_a_terminal_the_person_is_asked(
    runs: Path, monkeypatch: pytest.MonkeyPatch, answer: str, is_removed: bool
) -> None:
    simulator_run(runs / "one")
    ours, theirs = pty.openpty()
    try:
        with open(theirs, "w", closefd=False) as screen, open(theirs, closefd=False) as keys:
            monkeypatch.setattr(sys, "stdin", keys)
            monkeypatch.setattr(sys, "stdout", screen)
            os.write(ours, answer.encode())
            assert main(["runs", "rm", "one"]) == (0 if is_removed else 1)
        shown = b""
        while b"Remove this run?" not in shown:  # a terminal hands its output on as it comes
            shown += os.read(ours, 10_000)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (runs / "one").exists() is not is_removed


def test_a_curve_fits_in_a_line() -> None:
    assert sparkline([]) == ""
    assert sparkline([1, 2, 3]) == "▁▅█"
    assert sparkline([2, 2]) == "▁▁"
    assert sparkline([0] * 50 + [1] * 50, width=4) == "▁▁██"
