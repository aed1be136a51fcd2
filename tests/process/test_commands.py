"""Commands: their output and exit, and that nothing of them is left."""

import signal
import time

import pytest

from tests.errors import raises
from tests.execution.processes import eventually, is_running
from tests.process.internals import ProcessError

from .children import command


def test_output_and_exit_code_of_a_command():
    process = command("sh", "-c", "echo out; echo err >&2; exit 4")
    report = process.wait(60)
    assert (report.code, report.describe()) == (4, "exit code 4")
    assert (process.stdout.text, process.stderr.text, report.last_lines) == ("out\n", "err\n", "err")


def test_an_output_that_is_kept_whole_has_no_broken_character_in_its_middle():
    process = command("printf", "ää", max_output_bytes=7)
    process.wait(60)
    assert process.stdout.text == "ää"


@pytest.mark.parametrize(
    ("program", "options", "named"),
    [("no-such-program", {}, "no-such-program"), ("true", {"cwd": "/no/such/folder"}, "/no/such/folder")],
    ids=["program", "folder"],
)
def test_a_command_that_cannot_be_started_is_named(program, options, named):
    with raises(ProcessError, named) as caught:
        command(program, **options).wait(60)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_command_is_ready_when_its_probe_says_so(tmp_path):
    process = command("sh", "-c", f"touch {tmp_path}/ready; exec sleep 60")
    process.wait_until((tmp_path / "ready").exists, 60)
    process.signal(signal.SIGINT)
    assert process.wait(60).describe() == "killed by SIGINT"


def test_a_command_that_is_not_ready_in_time_is_ended_and_its_output_shown():
    process = command("sh", "-c", "echo loading weights >&2; sleep 60", name="the server")
    eventually(lambda: process.stderr.size_bytes, "it says something")
    with raises(ProcessError, "the server", 0.2, "loading weights"):
        process.wait_until(lambda: False, 0.2)
    assert not process.is_alive


def test_a_command_that_ends_before_it_is_ready_says_how():
    process = command("sh", "-c", "echo no such device >&2; exit 3")
    with raises(ProcessError, 3, "no such device"):
        process.wait_until(lambda: False, 60)


def test_whoever_ignores_sigterm_is_killed_after_the_grace():
    process = command(
        "sh", "-c", "trap '' TERM; setsid sleep 60 & echo $!; while :; do sleep 1; done", grace_seconds=0.2
    )
    eventually(lambda: process.stdout.text.strip(), "it has started")
    escaped, start = int(process.stdout.text), time.monotonic()
    assert process.end().describe() == "killed by SIGKILL"
    assert time.monotonic() - start > 0.2
    assert not is_running(escaped)
    assert not is_running(process.command_pid)


async def test_a_command_that_heeds_sigterm_is_not_killed():
    process = command("sh", "-c", "trap 'exit 9' TERM; echo here; while :; do sleep 0.05; done", grace_seconds=60)
    eventually(lambda: process.stdout.size_bytes, "it has started")
    assert (await process.end_async()).code == 9


def test_a_command_whose_launcher_is_killed_ends_with_it():
    process = command("sh", "-c", "sleep 60 & echo $!; wait")
    eventually(lambda: process.stdout.text.strip(), "it has started")
    process._process.kill()
    assert process.wait(60).code == -signal.SIGKILL
    eventually(lambda: not is_running(int(process.stdout.text)), "what it has started ends")
