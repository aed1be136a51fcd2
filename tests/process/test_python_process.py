"""Fresh interpreters: jobs and messages, readiness, signs of life, and every way to the end."""

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.errors import raises
from tests.execution.processes import child_pids, eventually, is_running
from tests.process.internals import (
    STOP,
    Channel,
    ChannelClosed,
    ExitReport,
    Failure,
    Job,
    Parent,
    ProcessError,
    is_traced,
    kit,
)

from .children import child
from .programs.children import BIG

PTRACE_SEIZE = 0x4206
GARBAGE = "print() into the socket"


@contextlib.contextmanager
def started(behaviour, *arguments, **options):
    process = child(behaviour, *arguments, **options)
    try:
        yield process
    finally:
        process.discard()
    assert not is_running(process.pid)


# -- messages ----------------------------------------------------------------------------------------


def test_messages_go_both_ways_once_the_child_is_ready():
    with started("echo") as echo:
        assert echo.wait_ready(60) == b"here"
        for message in (b"", b"\0\xff", b"x" * 300_000):
            echo.send(message)
            assert echo.receive(30) == message
        assert echo.receive(0.01) is None
        echo.ask_to_stop()
        assert echo.wait(30) == ExitReport(7)
        with pytest.raises(ChannelClosed):
            echo.receive()


def test_large_messages_that_cross_do_not_block_parent_and_child():
    with started("send_first") as other:
        other.send(b"p" * BIG)
        assert other.receive(30) == b"c" * BIG
        assert other.receive(30) == b"%d" % BIG


async def test_a_job_arrives_whole_with_its_files_outputs_and_context(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("ODD", os.fsdecode(b"caf\xe9"))  # not valid text
    process = child("do_job", stdout=subprocess.DEVNULL)
    monkeypatch.chdir(tmp_path)  # later than its start
    read, write = os.pipe()
    messages = []
    sending = asyncio.create_task(
        asyncio.to_thread(process.send_job, Job({"n": [1, None]}, b"x" * BIG + b"end", [write]))
    )
    report = await process.listen(messages.append)
    await sending
    os.close(write)
    assert (report, len(messages)) == (ExitReport(0), 1)
    seen = ({"n": [1, None]}, BIG + 3, os.fsdecode(b"caf\xe9"), str(tmp_path), sys.argv)
    assert messages[0].decode() == repr(seen)
    assert os.read(read, 100) == b"file end"
    os.close(read)
    assert "printed by the job" in capfd.readouterr().out


async def test_a_child_that_sends_something_else_than_frames_is_killed():
    report = await asyncio.wait_for(child("write_garbage").listen(lambda _: None), 60)
    assert report.code == -signal.SIGKILL
    assert GARBAGE in report.failure.message


async def test_a_child_whose_listener_fails_or_is_cancelled_is_killed():
    def fail(message):
        raise LookupError(message)

    process = child("echo")
    process.send(b"hello")
    with pytest.raises(LookupError):
        await process.listen(fail)
    assert not process.is_alive
    process = child("echo")
    listening = asyncio.create_task(process.listen(lambda _: None))
    await asyncio.sleep(0)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    assert process.wait(30) == ExitReport(-signal.SIGKILL)
    process.close()


# -- the start ---------------------------------------------------------------------------------------


def test_a_child_that_is_not_ready_in_time_is_ended_and_its_output_shown():
    process = child("hang_at_start", stderr=subprocess.PIPE)
    eventually(lambda: process.stderr.size_bytes, "it says something")
    with raises(ProcessError, "hang_at_start", 0.1, "loading something large"):
        process.wait_ready(0.1)
    assert not is_running(process.pid)
    process.close()


@pytest.mark.parametrize(("behaviour", "words"), [("fail_at_start", "bad port 99999"), ("write_garbage", GARBAGE)])
def test_a_child_that_fails_at_its_start_says_why(behaviour, words):
    with started(behaviour) as process, raises(ProcessError, behaviour, words):
        process.wait_ready(60)


def test_an_exception_of_a_child_is_part_of_its_report():
    with started("fail_at_start") as process:
        report = process.wait(60)
        assert (report.code, report.failure.kind, report.failure.message) == (1, "ValueError", "bad port 99999")
        assert report.failure.last_line == "ValueError: bad port 99999"


def test_a_child_that_cannot_be_watched_ends_at_once(monkeypatch):
    def out_of_files(self):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(kit.Watcher, "_start", out_of_files)
    before = set(child_pids())
    with raises(OSError, "Too many"):
        child("echo")
    assert set(child_pids()) <= before
    assert kit.watched._children == {}


# -- the end -----------------------------------------------------------------------------------------


def test_a_child_that_stops_when_asked_gets_no_signal():
    with started("stop_when_asked") as process:
        process.wait_ready(60)
        assert process.end((None, 60.0), (signal.SIGKILL, 0.0)) == ExitReport(5)


async def test_a_child_that_ignores_requests_and_signals_is_killed_after_its_graces(caplog):
    process = child("ignore_everything")
    process.wait_ready(60)
    with caplog.at_level(logging.WARNING):
        report = await process.end_async((None, 0.1), (signal.SIGINT, 0.2), (signal.SIGTERM, 0.3))
    assert report.describe() == "killed by SIGKILL"
    steps = [(record.args[1], record.args[2]) for record in caplog.records if len(record.args) == 3]
    assert steps == [(0.1, "SIGINT"), (0.2, "SIGTERM")]
    assert "0.3 s: sending SIGKILL" in caplog.text
    process.close()


def test_signals_come_in_order_and_no_later_than_needed(caplog):
    with started("die_of_sigint", stderr=subprocess.DEVNULL) as process:
        process.wait_ready(60)
        report = process.end((None, 0.1), (signal.SIGINT, 60.0), (signal.SIGTERM, 60.0))
    assert (report.code, report.failure.kind) == (1, "KeyboardInterrupt")
    assert "SIGTERM" not in caplog.text


def test_what_a_child_has_started_ends_with_it():
    with started("start_another") as process:
        other = int(process.receive(60))
        assert process.wait(60) == ExitReport(0)
        eventually(lambda: not is_running(other), "what it has started ends")


def test_captured_output_is_bounded_and_keeps_both_ends():
    lines = []
    with started("print_much", stdout=subprocess.PIPE, max_output_bytes=4096, on_line=lines.append) as process:
        report = process.wait(60)
    assert process.stdout.size_bytes > 1_000_000
    assert len(process.stdout.text) < 5000
    assert process.stdout.text.startswith("first line")
    assert str(process.stdout.left_out_bytes) in process.stdout.text
    assert report.code == 3
    assert report.last_lines.endswith("last line")
    assert (len(lines), lines[0], lines[-1]) == (20_002, "first line", "last line")


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (ExitReport(0), ["exit code 0"]),
        (ExitReport(-9, "the end"), ["killed by SIGKILL", "memory", "the end"]),
        (ExitReport(-64), ["SIGRTMAX"]),
        (ExitReport(-100), ["signal 100"]),
        (ExitReport(1, "output", Failure("E", "m", "trace of E\n")), ["exit code 1", "trace of E"]),
    ],
    ids=["code", "signal", "named", "unknown", "failure"],
)
def test_a_report_says_how_a_child_ended(report, words):
    assert [word for word in words if word not in str(report)] == []


# -- signs of life -----------------------------------------------------------------------------------


def test_a_child_that_holds_the_interpreter_lock_falls_silent(tmp_path):
    def is_silent_for(seconds):
        process.receive(0.01)  # takes in the signs
        return process.is_silent(seconds)

    with started("hold_the_lock", tmp_path / "held") as process:
        time.sleep(0.2)
        assert not process.is_silent(0.1)  # it has no job yet
        process.send_job(Job({}))
        eventually((tmp_path / "held").exists, "the lock is held")
        eventually(lambda: is_silent_for(0.5), "it falls silent")


def test_a_child_that_shows_life_is_never_silent_for_long():
    with started("show_life") as process:
        process.send_job(Job({}))
        eventually(lambda: process.receive(0.01) is not None or process.has_taken_job, "it has its job")
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            process.receive(0.01)
            assert not process.is_silent(1.0)


class Trace(threading.Thread):
    """Has a process as gdb would, without stopping it, until the block ends."""

    def __init__(self, pid):
        super().__init__()
        self._pid, self._is_over, self.error = pid, threading.Event(), None

    def run(self):
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = map(ctypes.c_long, (PTRACE_SEIZE, self._pid, 0, 0))
        self.error = ctypes.get_errno() if libc.ptrace(*arguments) else 0
        self._is_over.wait()

    def __enter__(self):
        self.start()
        eventually(lambda: self.error is not None)
        if self.error:
            self.__exit__()
            pytest.skip("this machine allows no ptrace")

    def __exit__(self, *error):
        self._is_over.set()
        self.join()


def test_a_process_in_a_debugger_counts_as_traced_until_it_is_let_go():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as run:
        assert not is_traced(run.pid)
        with Trace(run.pid):
            assert is_traced(run.pid)
        eventually(lambda: not is_traced(run.pid))


# -- what a child knows of its parent ----------------------------------------------------------------


def test_a_child_that_asks_knows_at_once_that_its_parent_has_gone_or_wants_the_end():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent = Parent(theirs)
        assert not parent.is_stopping()
        Channel(ours).send(kind=STOP)
        assert parent.is_stopping()
        with pytest.raises(ChannelClosed):  # it was left for the one who receives
            parent.receive()
        assert not parent.is_stopping()
        ours.close()
        assert parent.is_stopping()


def test_an_exception_whose_text_cannot_be_read_is_reported_as_well():
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    failure = Failure.of(Broken())
    assert failure.kind == "Broken"
    assert "RuntimeError" in failure.message
