"""Ends the children of a parent that was killed: `python -I -S watcher.py FD TERM_SECONDS KILL_SECONDS`.

The parent writes a line to the pipe for each child that starts (`+PID ROLE`) and that has ended (`-PID`). When the pipe
closes, the parent has gone. Its runners then finish what they have in hand. TERM_SECONDS later those that are left get
SIGTERM and hand their rollouts back, and after KILL_SECONDS their process groups are killed: an agent that holds the
interpreter lock keeps its process from noticing anything. The store ends last, as runners report to it.

It is run as a file and imports nothing that takes time.
"""

import os
import signal
import sys
import time

TYPE_CHECKING = False  # of `typing`, which takes longer to import than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS = 0.1
LIVING = "RSDTtIWKP"  # states of processes that have not ended


class Child:
    """A child of the parent, with the group that it leads."""

    def __init__(self, pid: int, role: str) -> None:
        self.pid, self.role = pid, role
        self._start_time = _status(pid)[19:20]

    def is_there(self) -> bool:
        """Whether the child, or a process that it has started, lives."""
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        own = _status(self.pid)
        if own and own[19:20] != self._start_time:
            return False  # its number is another process's by now
        processes = [_status(pid) for pid in _processes()]
        return not processes or any(each[2:3] == [str(self.pid)] and each[0] in LIVING for each in processes)

    def send(self, number: int) -> None:
        """A signal for the child alone; SIGKILL goes to its group."""
        send: Callable[[int, int], None] = os.killpg if number == signal.SIGKILL else os.kill
        if self.is_there():
            try:
                send(self.pid, number)
            except (ProcessLookupError, PermissionError):
                return  # it has ended meanwhile


def _status(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, group, …; empty where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []  # a system without it


def listen(pipe: int) -> list[Child]:
    """Wait until the parent has gone, and return the children that it leaves behind."""
    children: dict[int, Child] = {}
    rest = b""
    while data := os.read(pipe, 65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            pid, _, role = line[1:].decode().partition(" ")
            if line.startswith(b"+"):
                children[int(pid)] = Child(int(pid), role)
            else:
                children.pop(int(pid), None)
    return list(children.values())


def end(children: list[Child], term_seconds: float, kill_seconds: float) -> None:
    """Nobody is left afterwards."""
    runners = [child for child in children if child.role == "runner"]
    others = [child for child in children if child.role != "runner"]
    _wait(runners, term_seconds)
    _send(runners, signal.SIGTERM)
    _wait(runners, kill_seconds - term_seconds)
    _send(runners, signal.SIGKILL)
    _send(others, signal.SIGTERM)
    _wait(others, kill_seconds)
    _send(others, signal.SIGKILL)


def _wait(children: list[Child], seconds: float) -> None:
    until = time.monotonic() + seconds
    while any(child.is_there() for child in children) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def _send(children: list[Child], number: int) -> None:
    for child in children:
        child.send(number)


if __name__ == "__main__":
    end(listen(int(sys.argv[1])), float(sys.argv[2]), float(sys.argv[3]))
