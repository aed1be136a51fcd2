"""Runs a command and leaves nothing of it behind: `python -I -S launcher.py LINK GRACE FOLDER COMMAND…`.

It starts the command in a process group of its own, and reports over the link: `started PID`, then `ended CODE`, or
`unstarted ERRNO`. A number that comes back is a signal for the group. When the other end of the link is shut, because
the command is no longer wanted or because the process that wanted it has died, the command and everything that it has
started get SIGTERM, and after GRACE seconds SIGKILL. Descendants that have left the group are found too: where the
system can do it (Linux), those that lose their parent become children of the launcher. FOLDER (may be empty) holds
temporary files, which are removed if the link was shut first.

It is run as a file, once a command: it imports nothing that takes time.
"""

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # of `typing`, which takes longer to import than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_SECONDS = 0.02  # between two looks at who is left
KILL_SECONDS = 10.0  # what does not die of SIGKILL in that time hangs in the kernel
# Python's own, and those that must not end us before the program has ended.
_RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Program:
    """The program and whatever it has started."""

    def __init__(self, command: list[str], link: int) -> None:
        self._woken, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _RESET[2:]:
            signal.signal(number, signal.SIG_IGN)
        self.code: int | None = None
        self.pid = _start(command, link)

    def wait(self, link: int) -> None:
        """Until it has ended, or the link is shut."""
        while self.code is None:
            ready, _, _ = select.select([link, self._woken], [], [])
            if link in ready:
                data = _hear(link)
                if not data:
                    return
                for number in data.split():
                    _signal(os.killpg, self.pid, int(number))
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._reap()

    def end_all(self, grace_seconds: float) -> None:
        """Nobody is left afterwards."""
        told: set[int] = set()
        self._until_nobody_is_left(grace_seconds, lambda: self._send(signal.SIGTERM, told))
        self._until_nobody_is_left(KILL_SECONDS, lambda: self._send(signal.SIGKILL, set()))

    def _until_nobody_is_left(self, seconds: float, send: "Callable[[], None]") -> None:
        end = time.monotonic() + seconds
        while self._reap() and time.monotonic() < end:
            send()
            if select.select([self._woken], [], [], LOOK_SECONDS)[0]:
                os.read(self._woken, 4096)

    def _reap(self) -> bool:
        """Whether there is somebody left; the ends of all others are noted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self._has_group()
            if pid == 0:
                return True
            if pid == self.pid:
                self.code = os.waitstatus_to_exitcode(status)

    def _has_group(self) -> bool:
        """Members of its group that are not ours, on systems where orphans do not come to us."""
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _send(self, number: signal.Signals, told: set[int]) -> None:
        """A signal for everybody who has not had it."""
        if self.pid not in told:
            told.add(self.pid)
            _signal(os.killpg, self.pid, number)
        for pid in _children():
            if pid not in told and not _is_in_group(pid, self.pid):
                told.add(pid)
                _signal(os.kill, pid, number)


def _signal(send: "Callable[[int, int], None]", target: int, number: int) -> None:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        return  # it has ended meanwhile, or runs as somebody else


def _is_in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return True


def _children() -> list[int]:
    """The processes whose parent we are, by birth or because theirs has died."""
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel that does not tell it so
        return [pid for pid in _processes() if _parent_of(pid) == own]


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []  # a system without it


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None  # it has ended meanwhile


def _start(command: list[str], link: int) -> int:
    """The number of the program, which is told before the program begins: then nobody can miss it."""
    (starting, start), (said, saying) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(start)
        _become(command, starting, saying)
    os.close(starting)
    os.close(saying)
    _tell(link, f"started {pid}")
    os.write(start, b".")
    with os.fdopen(said, "rb") as answer:
        code = answer.read()
    if code:
        raise OSError(int(code), "")
    return pid


def _become(command: list[str], starting: int, saying: int) -> None:
    """Turn into the program, in a group of its own; does not return. It dies with its parent, whatever that dies of."""
    try:
        os.setpgid(0, 0)
        _ask_system(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.read(starting, 1):
            for number in _RESET:
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)
    except OSError as error:
        os.write(saying, str(error.errno).encode())
    finally:
        os._exit(127)


def _ask_system(option: int, value: int) -> None:
    """Set an option of this process; systems that know no such thing go without."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def _hear(link: int) -> bytes:
    try:
        return os.read(link, 1024)
    except OSError:
        return b""


def _tell(link: int, line: str) -> None:
    try:
        os.write(link, line.encode() + b"\n")
    except OSError:
        return  # nobody listens any more


def _remove(folder: str) -> None:
    """The temporary files, where whoever made them can no longer remove them."""
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        return  # somebody was faster


def main() -> None:
    link, grace_seconds, folder, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]
    os.set_inheritable(link, False)
    _ask_system(PR_SET_CHILD_SUBREAPER, 1)  # descendants that lose their parent become ours
    try:
        program = Program(command, link)
    except OSError as error:
        _tell(link, f"unstarted {error.errno}")
        return
    program.wait(link)
    is_unwanted = program.code is None
    program.end_all(grace_seconds)
    _tell(link, f"ended {program.code}")
    if is_unwanted:
        _remove(folder)


if __name__ == "__main__":
    main()
