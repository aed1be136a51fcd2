"""A process of a benchmark that is told what to do by lines of JSON, and answers by them.

What it is told may hold a password, which has no place on a command line.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


class LineProcess:
    """A script of this folder. It gets its job at once and says when it is ready."""

    def __init__(self, script: str, job: Figures) -> None:
        command = [sys.executable, str(Path(__file__).parent / script)]
        self._script = script
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.tell(job)

    def tell(self, line: Figures | None = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line or {}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Figures:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._script} ended early; its errors are above")
        heard: Figures = json.loads(line)
        return heard

    def ask(self, line: Figures | None = None) -> Figures:
        self.tell(line)
        return self.hear()

    def end(self) -> None:
        """It ends when its input does."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def processes(script: str, jobs: Sequence[Figures]) -> Iterator[list[LineProcess]]:
    """Several at once, all of them ready."""
    running: list[LineProcess] = []
    try:
        running += [LineProcess(script, job) for job in jobs]
        for each in running:
            each.hear()
        yield running
    finally:
        for each in running:
            each.end()


def ask_all(running: Sequence[LineProcess]) -> list[Figures]:
    """Let all of them do one round at the same time."""
    for each in running:
        each.tell()
    return [each.hear() for each in running]


def next_line() -> Figures | None:
    """In such a process: what it is told next, None at the end."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def say(figures: Figures) -> None:
    print(json.dumps(figures), flush=True)
