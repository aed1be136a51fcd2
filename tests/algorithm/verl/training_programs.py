"""Training programs in processes of their own, which tests kill, interrupt and start again."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sharpen.store import SQLiteStore

from .programs.agents import NOTES

REPOSITORY = Path(__file__).parents[3]
STARTER = Path(__file__).parent / "programs" / "starter.py"
PATIENCE_SECONDS = 60.0


def eventually(is_true: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"{what} did not become true within {seconds:g} s"
        time.sleep(0.005)


class TrainingPrograms:
    """Starts them in a folder, one after the other."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        self._starter = subprocess.Popen(
            [sys.executable, str(STARTER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **request: Any) -> int:
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.write(json.dumps(request) + "\n")
        self._starter.stdin.flush()
        return int(self._starter.stdout.readline())

    @contextlib.contextmanager
    def started(self, name: str, **options: Any) -> Iterator["TrainingProgram"]:
        """A run in the folder of this name; what is left of it at the end of the block is killed."""
        program = TrainingProgram(self, name, options)
        try:
            yield program
        finally:
            program.kill()

    def close(self) -> None:
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.close()
        self._starter.wait(PATIENCE_SECONDS)
        self._starter.stdout.close()


class TrainingProgram:
    """One process with all that come from it."""

    def __init__(self, programs: TrainingPrograms, name: str, options: dict[str, Any]) -> None:
        self.run = programs.folder / name
        self._notes, self._output = programs.folder / f"{name}.notes", programs.folder / f"{name}.output"
        self._notes.touch()
        paths = {"model": str(programs.model), "folder": str(self.run), "notes": str(self._notes)}
        self._programs = programs
        self.pid = programs.ask(**options, **paths, output=str(self._output))
        self._code: int | None = None

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def notes(self) -> list[str]:
        return self._notes.read_text().splitlines()

    def count(self, what: str) -> Counter[str]:
        """How often each rollout began or ended, by its place in the run."""
        return Counter(_place(line.split()[1]) for line in self.notes if line.startswith(what))

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "result.json").read_text())
        return found

    def family(self) -> set[int]:
        """Itself, and all that has its notes in the environment."""
        mark = f"{NOTES}={self._notes}".encode()
        return {pid for pid in _living() if pid == self.pid or mark in _environment(pid)}

    def child(self, words: str) -> int:
        """The first one with these words in its command line; later ones are kept ready."""
        return min(pid for pid in self.family() if words.encode() in _read(pid, "cmdline").replace(b"\0", b" "))

    def send(self, number: signal.Signals) -> None:
        """To the group of the process, as a terminal does."""
        os.killpg(self.pid, number)

    def wait(self) -> int:
        """Its exit code, when nothing of it lives any more."""
        if self._code is None:
            eventually(lambda: not self.family(), "the end of the program")
            self._code = self._programs.ask(wait=self.pid)
        return self._code

    def kill(self) -> None:
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()

    def finished(self) -> set[str]:
        """The places of the rollouts that the store knows as finished."""

        async def read() -> set[str]:
            store = SQLiteStore(self.run / "store.db")
            try:
                found = await store.query_rollouts(status_in=["succeeded", "failed"])
                return {_place(each.rollout_id) for each in found}
            finally:
                await store.close()

        return asyncio.run(read())


def _place(rollout_id: str) -> str:
    """Without the key, which every start of a run has its own of."""
    return rollout_id.split("-", 2)[2]


def _living() -> Iterator[int]:
    """Not those that have ended and wait to be asked how."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        state = _read(pid, "stat").rpartition(b")")[2].split()[:1]
        if state and state[0] not in b"ZX":
            yield pid


def _environment(pid: int) -> list[bytes]:
    return _read(pid, "environ").split(b"\0")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
