"""Completion of the command line in shells."""

import io
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharpen.cli import main
from tests.cli.internals import SCRIPTS, candidates, make_parser

PARSER = make_parser()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    for name in ("20260101-100000-apo", "20260102-100000-grpo", "with space"):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text("{}")
    (root / "no-run").mkdir()
    monkeypatch.setenv("SHARPEN_RUNS", str(root))
    return root


def words(*given: str, is_split: bool = False) -> list[str]:
    return [line.split("\t")[0] for line in candidates(PARSER, list(given), is_split=is_split)]


def test_commands_are_completed_with_what_they_do() -> None:
    assert words("ru") == ["runs", "runner"]
    assert f"doctor\t{PARSER.summaries['doctor']}" in candidates(PARSER, ["do"])
    assert len(words("")) == 15


def test_commands_of_commands_are_completed() -> None:
    assert "show" in words("runs", "sh")
    assert set(words("store", "")) >= {"serve", "stats", "prune", "backup"}


def test_options_are_completed_once_and_hidden_ones_never() -> None:
    assert words("doctor", "--") == ["--help", "--deep", "--json", "--no-color"]
    assert words("doctor", "--deep", "--") == ["--help", "--json", "--no-color"]
    assert "--words" not in words("completion", "--")


def test_choices_are_completed() -> None:
    assert words("completion", "") == ["bash", "fish", "zsh"]
    assert words("store", "serve", "--synchronous", "f") == ["full"]
    assert words("store", "serve", "--synchronous=f") == ["--synchronous=full"]


def test_a_shell_that_splits_at_the_equals_sign_is_answered_in_its_way() -> None:
    assert words("store", "serve", "--synchronous", "=", "f", is_split=True) == ["full"]
    assert words("store", "serve", "--synchronous", "=", is_split=True) == ["normal", "full"]
    assert words("store", "serve", "--synchronous", "=", "full", "--ho", is_split=True) == ["--host"]


def test_names_of_runs_are_completed_newest_first(runs: Path) -> None:
    assert words("train", "config.yaml", "--resume", "") == ["last", "20260102-100000-grpo", "20260101-100000-apo"]
    assert words("train", "config.yaml", "--resume", "20260101") == ["20260101-100000-apo"]
    assert words("dashboard", "l") == ["last", ":files"]


def test_a_folder_of_runs_that_is_not_there_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "none"))
    assert words("runs", "show", "") == ["last"]


def test_files_and_folders_are_left_to_the_shell() -> None:
    assert words("train", "co") == [":files"]
    assert words("mcp", "--base-dir", "") == [":folders"]
    assert words("mcp", "--base-dir=x") == [":folders"]


def test_what_is_unknown_completes_to_nothing() -> None:
    assert words("nothing", "") == []
    assert words("doctor", "x", "y") == []
    assert words("train", "config.yaml", "key=") == []


def test_the_command_answers_a_script(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("doctor\n--d\n"))
    assert main(["completion", "--words"]) == 0
    assert capsys.readouterr().out.startswith("--deep\t")


def test_a_shell_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "bash, fish, zsh" in capsys.readouterr().err
    assert main(["completion", "bsh"]) == 2
    assert "did you mean 'bash'?" in capsys.readouterr().err


@pytest.mark.parametrize("shell", [each for each in SCRIPTS if shutil.which(each)])
def test_the_script_is_read_by_its_shell_without_a_word(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell])
    ran = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# -- a real bash at a terminal -----------------------------------------------------------------------


class Terminal:
    """A shell that somebody types into."""

    def __init__(self, *command: str, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: str) -> None:
        self._seen = ""
        os.write(self._master, text.encode())

    def wait_for(self, text: str, *, seconds: float = 15.0) -> str:
        """Everything that was shown since something was typed, once `text` is in it."""
        end = time.monotonic() + seconds
        while text not in self._seen:
            ready, _, _ = select.select([self._master], [], [], max(end - time.monotonic(), 0))
            assert ready, f"{text!r} is not in {self._seen!r}"
            self._seen += os.read(self._master, 4096).decode(errors="replace")
        return self._seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def bash(runs: Path, tmp_path: Path) -> Iterator[Terminal]:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = bin_folder / "sharpen"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sharpen.cli "$@"\n')
    program.chmod(0o755)
    (tmp_path / "settings.yaml").touch()
    (tmp_path / "script").write_text(SCRIPTS["bash"])
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PS1": "ready> ", "TERM": "dumb"}
    terminal = Terminal("bash", "--noprofile", "--norc", "-i", environment=environment)
    terminal.type(f"bind 'set bell-style none'; cd {tmp_path}; source ./script; echo load''ed\n")
    terminal.wait_for("loaded\r\nready> ")
    yield terminal
    terminal.close()


def test_a_real_bash_completes_commands_options_choices_runs_and_files(bash: Terminal) -> None:
    for typed, expected in [
        ("sharpen compl\t", "completion "),
        ("sharpen doctor --de\t", "--deep "),
        ("sharpen store serve --synchronous=fu\t", "--synchronous=full "),
        ("sharpen train x --resume 20260102\t", "--resume 20260102-100000-grpo "),
        ("sharpen train set\t", "settings.yaml "),
    ]:
        bash.type(typed)
        bash.wait_for(expected)
        bash.type("\x15")  # clears the line
