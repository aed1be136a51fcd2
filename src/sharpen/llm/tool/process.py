"""Processes by their number and their start: a number alone may belong to another process later."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

_STARTED = 19  # the 22nd field of /proc/PID/stat, counted from the third, which follows the name of the program


@dataclass(frozen=True)
class ProcessMark:
    """One process and no other."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The mark of a process that lives; None where none does, or only its exit code is left."""
        started = _start_of(pid)
        return None if started is None else cls(pid, started)

    def is_alive(self) -> bool:
        return _start_of(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process, if it lives."""
        if self.is_alive():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """End this process, which leads a group of its own, and everything that it has started."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def _start_of(pid: int) -> str | None:
    if sys.platform == "linux":
        return _start_on_linux(pid)
    return _start_elsewhere(pid)


def _start_on_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{_boot()}:{fields[_STARTED].decode()}"


@cache
def _boot() -> str:
    """The start is counted from that of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _start_elsewhere(pid: int) -> str | None:
    asked = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C", "PATH": os.environ.get("PATH", "")},
    )
    state, _, started = asked.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()
