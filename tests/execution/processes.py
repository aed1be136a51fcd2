"""Programs of their own for the tests, and what is left of them."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE_SECONDS = 60
MARK = "SHARPEN_TEST_MARK"
PROGRAMS = Path(__file__).parent / "programs"
REPOSITORY = Path(__file__).parents[2]


def eventually(is_true: Callable[[], object], what: str = "this", seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"{what} did not become true within {seconds:g} s"
        time.sleep(0.01)


def notes(folder: Path, name: str) -> list[str]:
    """What the runners have left behind the name, such as process ids."""
    return sorted(path.name.removeprefix(f"{name}-") for path in folder.glob(f"{name}-*"))


def wait_for_note(folder: Path, name: str, count: int = 1) -> list[str]:
    eventually(lambda: len(notes(folder, name)) >= count, f"{name}, {count} times,")
    return notes(folder, name)


def is_running(pid: int) -> bool:
    """Whether the process lives; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def child_pids() -> list[int]:
    """The processes that this one has started and not yet reaped."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found += map(int, (task / "children").read_text().split())
    return found


class Program:
    """A program in a process of its own. Everything that comes from it carries a mark, by which it is found."""

    def __init__(self, name: str, *arguments: str | Path, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `clean_up`
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(PROGRAMS / name), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment, MARK: self.mark},
        )
        self.output = ""

    @property
    def errors(self) -> str:
        """What it has written to standard error up to now."""
        self._errors.seek(0)
        return self._errors.read()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit code, once it has ended and nobody holds its output open any more."""
        self.output, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        return self._process.returncode

    def family(self) -> set[int]:
        """The processes that came from this program and live, itself included."""
        return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_ours(pid)}

    def _is_ours(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return f"{MARK}={self.mark}".encode() in environment.split(b"\0") and is_running(pid)

    def is_gone(self) -> bool:
        return not self.family()

    def clean_up(self) -> None:
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()
        self._errors.close()


@contextlib.contextmanager
def program(name: str, *arguments: str | Path, **environment: str) -> Iterator[Program]:
    """A program that is gone, with its family, when the block ends."""
    started = Program(name, *arguments, **environment)
    try:
        yield started
    finally:
        started.clean_up()
