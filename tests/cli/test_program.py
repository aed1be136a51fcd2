"""The program `sharpen`: its help, how it ends, and what it says when something is wrong."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sharpen
from sharpen.cli import main
from sharpen.errors import ConfigError, FinishedError, StoreUnavailableError, UnknownIdError
from tests.cli.internals import MEANINGS, program

HEAVY = ("torch", "numpy", "uvicorn", "starlette", "aiohttp", "opentelemetry", "rich", "sqlite3", "msgspec", "yaml")

Text = pytest.CaptureFixture[str]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sharpen.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


class Try:
    """A command of its own, whose work is given."""

    def __init__(self, work: Callable[[argparse.Namespace], Any]) -> None:
        self._work = work

    def add_command(self, commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        parser = commands.add_parser("try", help="tries")
        parser.add_argument("--json", action="store_true")
        parser.set_defaults(run=self._work)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def call(work: Callable[[argparse.Namespace], Any], *arguments: str) -> int:
        monkeypatch.setitem(program.GROUPS, "tries", (Try(work),))
        return main(["try", *arguments])

    return call


def raising(error: BaseException) -> Callable[[argparse.Namespace], None]:
    def work(_: argparse.Namespace) -> None:
        raise error

    return work


# -- help --------------------------------------------------------------------------------------------


def test_it_tells_its_version(capsys: Text) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"sharpen {sharpen.__version__}"


def test_without_a_command_it_lists_them(capsys: Text) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert "inspect results:" in shown
    assert len(program.make_parser().summaries) == 15
    for name in program.make_parser().summaries:
        assert f"\n  {name} " in shown


def test_help_loads_no_heavy_package() -> None:
    code = "import sys; from sharpen.cli import main; main(['--help']); print('LOADED', *sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("usage: sharpen COMMAND")
    assert not [name for name in ran.stderr.split() if name.startswith(HEAVY)]


@pytest.mark.parametrize("name", list(program.make_parser().summaries))
def test_the_help_of_every_command_has_an_example(name: str, capsys: Text) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"usage: sharpen {name}" in shown
    assert f"\n  sharpen {name}" in shown.split("example", maxsplit=1)[1] or name in ("completion",)


def test_help_fits_a_narrow_terminal(capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    main(["--help"])
    examples = "examples:"
    assert all(len(line) <= 70 for line in capsys.readouterr().out.split(examples)[0].splitlines())


# -- misspelt ----------------------------------------------------------------------------------------


def test_a_misspelt_command_is_answered_with_the_nearest(capsys: Text) -> None:
    assert main(["rollouts_"]) == 2
    assert "invalid choice: 'rollouts_'; did you mean 'rollouts'?" in capsys.readouterr().err


def test_a_word_that_is_near_to_nothing_is_answered_with_all(capsys: Text) -> None:
    assert main(["xyzzy"]) == 2
    assert "use one of: init, train," in capsys.readouterr().err


def test_a_misspelt_option_is_answered_with_the_nearest(capsys: Text) -> None:
    assert main(["mcp", "--bas-dir=x"]) == 2
    assert "sharpen mcp: unknown argument: --bas-dir=x; did you mean '--base-dir'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["runs", "--sate", "failed"], "sharpen runs: unknown argument: --sate; did you mean '--state'?"),
        (["runs", "--limit", "3", "--sate", "failed"], "unknown argument: --sate; did you mean '--state'?"),
        (["runs", "--sate=failed", "list"], "unknown argument: --sate=failed; did you mean '--state'?"),
        (["rollouts", "--stauts", "failed"], "unknown argument: --stauts; did you mean '--status'?"),
        (["store", "--prot", "0", "new.db"], "unknown argument: --prot; did you mean '--port'?"),
        (["--verson", "runs"], "unknown argument: --verson; did you mean '--version'?"),
        (["rollouts", "--reward-min", "-1", "lst"], "invalid choice: 'lst'; did you mean 'list'?"),
    ],
)
def test_a_misspelt_option_before_an_inner_command_is_named(words: list[str], told: str, capsys: Text) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


def test_help_names_every_exit_code_and_the_variables_of_a_database_and_a_gateway(capsys: Text) -> None:
    main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for code in MEANINGS:
        assert f" {code} " in shown.partition("exit codes:")[2]
    assert "SHARPEN_DATABASE_URL" in shown
    assert "SHARPEN_GATEWAY_TOKEN" in shown


def test_an_option_cannot_be_abbreviated(capsys: Text) -> None:
    assert main(["mcp", "--base", "x"]) == 2
    assert "--base-dir" in capsys.readouterr().err


def test_wrong_usage_is_told_to_programs_too(capsys: Text) -> None:
    assert main(["doctor", "--jsn", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"type": "UsageError", "message": "unknown argument: --jsn; did you mean '--json'?"}


def test_options_may_stand_between_arguments() -> None:
    parsed = program.make_parser().parse_args(["train", "config.yaml", "--dry-run", "a=1", "--json", "b=2"])
    assert (parsed.config, parsed.overrides, parsed.dry_run, parsed.json) == ("config.yaml", ["a=1", "b=2"], True, True)


# -- how it ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("n is 0"), 2),
        (UnknownIdError("no run 'x'"), 3),
        (FinishedError("it has ended"), 1),
        (StoreUnavailableError("no answer"), 1),
        (OSError(28, "No space left on device"), 1),
    ],
)
def test_an_error_is_one_line_and_a_code(
    error: Exception, code: int, command: Callable[..., int], capsys: Text
) -> None:
    assert command(raising(error)) == code
    assert capsys.readouterr() == ("", f"sharpen try: {error}\n")


def test_an_error_is_told_to_programs_too(command: Callable[..., int], capsys: Text) -> None:
    assert command(raising(UnknownIdError("no run 'x'")), "--json") == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": {"type": "UnknownIdError", "message": "no run 'x'"}}
    assert err == "sharpen try: no run 'x'\n"


def test_an_error_cannot_steer_the_terminal(command: Callable[..., int], capsys: Text) -> None:
    command(raising(ConfigError("\x1b[2J gone \u202e")))
    assert capsys.readouterr().err == "sharpen try: \\x1b[2J gone \\u202e\n"


def test_an_unexpected_error_says_where_its_traceback_is(
    command: Callable[..., int], capsys: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARPEN_DEBUG", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert command(raising(ZeroDivisionError("by zero"))) == 1
    (kept,) = tmp_path.iterdir()
    told = capsys.readouterr().err
    assert told.startswith("sharpen try: ZeroDivisionError: by zero\n")
    assert str(kept) in told
    assert "Traceback (most recent call last)" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_who_debugs_sees_the_traceback(
    command: Callable[..., int], capsys: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARPEN_DEBUG", "1")
    assert command(raising(ConfigError("n is 0"))) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_ctrl_c_ends_without_words(command: Callable[..., int], capsys: Text) -> None:
    assert command(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")


def test_sigterm_unwinds_the_command(command: Callable[..., int], capsys: Text) -> None:
    tidied = []

    def work(_: argparse.Namespace) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            tidied.append(True)

    assert command(work) == 143
    assert tidied == [True]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert capsys.readouterr() == ("", "")


def test_a_run_that_ends_by_sigterm_keeps_its_code(command: Callable[..., int]) -> None:
    assert command(raising(SystemExit(143))) == 143


def test_a_text_as_exit_code_is_a_failure(command: Callable[..., int], capsys: Text) -> None:
    assert command(raising(SystemExit("the agent gave up"))) == 1
    assert capsys.readouterr().err == "sharpen try: the agent gave up\n"


def test_the_code_of_a_command_is_passed_on(command: Callable[..., int]) -> None:
    assert command(lambda _: 7) == 7
    assert command(lambda _: None) == 0


def test_a_broken_connection_is_not_a_closed_pipe(command: Callable[..., int], capsys: Text) -> None:
    assert command(raising(BrokenPipeError(32, "Broken pipe"))) == 1
    assert "sharpen try: [Errno 32] Broken pipe" in capsys.readouterr().err


def test_a_closed_pipe_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "sharpen.cli", "completion", "bash"], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, b"")


# -- mcp ---------------------------------------------------------------------------------------------


def test_a_bad_setting_is_one_line(tmp_path: Path, capsys: Text) -> None:
    (tmp_path / "file").touch()
    assert main(["mcp", "--base-dir", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sharpen mcp: base_dir is ")
    assert error.count("\n") == 1


def test_the_server_ends_with_its_client(tmp_path: Path) -> None:
    ran = run("mcp", "--base-dir", str(tmp_path))
    assert (ran.returncode, ran.stdout) == (0, "")


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.stdio", None)
    assert main(["mcp", "--base-dir", str(tmp_path)]) == 1
    assert "pip install 'sharpen[mcp]'" in capsys.readouterr().err
