"""Ends the children of a process that was killed: `python -I -S watcher.py FD`.

The parent writes a line to the pipe for each child that starts (`+PID STAGE TERM_SECONDS KILL_SECONDS`) and each that
has ended (`-PID`). When the pipe closes, the parent has gone. Children of the first stage then finish what they are
doing; those that are left get SIGTERM after TERM_SECONDS, and after KILL_SECONDS their process groups are killed: code
that holds the interpreter lock keeps its process from noticing anything. Then it is the turn of the next stage, such
as a server that the first ones report to.

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
HUNG_SECONDS = 2.0
LIVING = "RSDTtIWKP"  # states of processes that have not ended


class Child:
    """A child of the parent, with the group that it leads."""

    def __init__(self, pid: int, stage: int, term_seconds: float, kill_seconds: float) -> None:
        self.pid, self.stage = pid, stage
        # Signal 0 does nothing: what does not die of SIGKILL in that time hangs in the kernel.
        self._due = [(term_seconds, signal.SIGTERM), (kill_seconds, signal.SIGKILL), (kill_seconds + HUNG_SECONDS, 0)]
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

    def signal_after(self, seconds: float) -> bool:
        """Send what is due so many seconds into its stage, and return whether something is left to do."""
        if not self._due or not self.is_there():
            return False
        if seconds >= self._due[0][0]:
            _, number = self._due.pop(0)
            send: Callable[[int, int], None] = os.killpg if number == signal.SIGKILL else os.kill
            try:
                send(self.pid, number)
            except (ProcessLookupError, PermissionError):
                return False  # it has ended meanwhile
        return True


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
            pid, *numbers = line[1:].decode().split()
            if line.startswith(b"+"):
                stage, term_seconds, kill_seconds = numbers
                children[int(pid)] = Child(int(pid), int(stage), float(term_seconds), float(kill_seconds))
            else:
                children.pop(int(pid), None)
    return list(children.values())


def end(children: list[Child]) -> None:
    """End all of them, stage after stage."""
    for stage in sorted({child.stage for child in children}):
        start = time.monotonic()
        left = [child for child in children if child.stage == stage]
        while left := [child for child in left if child.signal_after(time.monotonic() - start)]:
            time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    end(listen(int(sys.argv[1])))
