"""Ends what a parent leaves behind. It is run as a file, `python -I -S watcher.py …`, and imports nothing slow.

`watcher.py` watches the Python children of one process. The parent writes a line into its standard input for each
child that starts (`+PID STAGE TERM_SECONDS KILL_SECONDS`) and each that has ended (`-PID`). When that closes, the
parent has gone.
Children of the first stage then finish what they are doing; those that are left get SIGTERM after TERM_SECONDS, and
after KILL_SECONDS their process groups are killed: code that holds the interpreter lock keeps its process from
noticing anything. Then it is the turn of the next stage, such as a server that the first ones report to.

`watcher.py LINK GRACE FOLDER COMMAND…` runs one command in a separate process group, and reports over the link:
`started PID`, then `ended CODE`, or `unstarted ERRNO`. A number that comes back is a signal for the group. When the
other end of the link is shut, because the command is no longer wanted or because the process that wanted it has died,
the command and everything that it has started get SIGTERM, and after GRACE seconds SIGKILL. Descendants that have left
the group are found too: where the system can do it (Linux), those that lose their parent become children of the
watcher. FOLDER (may be empty) holds temporary files, which are removed if the link was shut first.
"""

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # of `typing`, which takes longer to import than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable

CHILD_LOOK_SECONDS, COMMAND_LOOK_SECONDS = 0.1, 0.02  # between two looks at who is left
HUNG_SECONDS, COMMAND_HUNG_SECONDS = 2.0, 10.0  # what does not die of SIGKILL in that time hangs in the kernel
LIVING = "RSDTtIWKP"  # states of processes that have not ended
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SHIELDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # must not end us before the command


# -- the children of a process -----------------------------------------------------------------------


class Child:
    """A child of the parent, with the group that it leads."""

    def __init__(self, pid: int, stage: int, term_seconds: float, kill_seconds: float) -> None:
        self.pid, self.stage = pid, stage
        # Signal 0 does nothing: after that the child is left alone.
        self._due = [(term_seconds, signal.SIGTERM), (kill_seconds, signal.SIGKILL), (kill_seconds + HUNG_SECONDS, 0)]
        self._start_time = _status(pid)[19:20]

    def is_there(self) -> bool:
        """Whether the child, or a process that it has started, lives."""
        own = _status(self.pid)
        if not _send(os.killpg, self.pid, 0) or (own and own[19:20] != self._start_time):
            return False  # it has gone, or its number is another process's by now
        processes = [_status(pid) for pid in _processes()]
        return not processes or any(each[2:3] == [str(self.pid)] and each[0] in LIVING for each in processes)

    def signal_after(self, seconds: float) -> bool:
        """Send what is due so many seconds into its stage, and return whether something is left to do."""
        if not self._due or not self.is_there():
            return False
        if seconds < self._due[0][0]:
            return True
        _, number = self._due.pop(0)
        return _send(os.killpg if number == signal.SIGKILL else os.kill, self.pid, number)


def watch() -> None:
    """Wait until the parent has gone, then end the children that it leaves behind, stage after stage."""
    children: dict[int, Child] = {}
    rest = b""
    while data := os.read(0, 65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            pid, *numbers = line[1:].decode().split()
            children.pop(int(pid), None)
            if line.startswith(b"+"):
                children[int(pid)] = Child(int(pid), int(numbers[0]), float(numbers[1]), float(numbers[2]))
    for stage in sorted({child.stage for child in children.values()}):
        start = time.monotonic()
        left = [child for child in children.values() if child.stage == stage]
        while left := [child for child in left if child.signal_after(time.monotonic() - start)]:
            time.sleep(CHILD_LOOK_SECONDS)


# -- one command -------------------------------------------------------------------------------------


class Command:
    """The command and whatever it has started."""

    def __init__(self, words: list[str], link: int) -> None:
        self._woken, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in SHIELDED:
            signal.signal(number, signal.SIG_IGN)
        self.code: int | None = None
        self.pid = _start(words)
        _report(link, f"started {self.pid}")

    def wait(self, link: int) -> None:
        """Wait until the command has ended, or the link is shut."""
        while self.code is None:
            ready, _, _ = select.select([link, self._woken], [], [])
            if link in ready:
                try:
                    data = os.read(link, 1024)
                except OSError:
                    return
                if not data:
                    return
                for number in data.split():
                    _send(os.killpg, self.pid, int(number))
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._has_kin()

    def end_all(self, grace_seconds: float) -> None:
        """End everybody who is left: SIGTERM once, and SIGKILL after the grace."""
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, COMMAND_HUNG_SECONDS)):
            signalled: set[int] = set()
            deadline = time.monotonic() + seconds
            while self._has_kin() and time.monotonic() < deadline:
                self._signal_all(number, signalled)
                if number == signal.SIGKILL:
                    signalled.clear()
                if select.select([self._woken], [], [], COMMAND_LOOK_SECONDS)[0]:
                    os.read(self._woken, 4096)

    def _has_kin(self) -> bool:
        """Reap all who have ended, and return whether somebody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                # Members of its group that are not ours, on systems where orphans do not come to us.
                return _send(os.killpg, self.pid, 0)
            if pid == 0:
                return True
            if pid == self.pid:
                self.code = os.waitstatus_to_exitcode(status)

    def _signal_all(self, number: int, signalled: set[int]) -> None:
        """Send a signal to everybody who has not had it: the group, and whoever has left it and is our child now."""
        if self.pid not in signalled:
            signalled.add(self.pid)
            _send(os.killpg, self.pid, number)
        own = str(os.getpid())
        for pid in _processes():
            parent_and_group = _status(pid)[1:3]
            is_ours_alone = parent_and_group[:1] == [own] and parent_and_group[1:] != [str(self.pid)]
            if is_ours_alone and pid not in signalled:
                signalled.add(pid)
                _send(os.kill, pid, number)


def _start(words: list[str]) -> int:
    """Start the command in a separate group and return its number. It dies with us, whatever we die of."""
    errors, failing = os.pipe()  # closed when the command begins
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            _set_option(PR_SET_PDEATHSIG, signal.SIGKILL)
            for number in (signal.SIGPIPE, signal.SIGXFSZ, *SHIELDED):  # Python ignores the first two
                signal.signal(number, signal.SIG_DFL)
            os.execvp(words[0], words)
        except OSError as error:
            os.write(failing, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(failing)
    with os.fdopen(errors, "rb") as file:
        code = file.read()
    if code:
        raise OSError(int(code), "")
    return pid


def _set_option(option: int, value: int) -> None:
    """Set an option of this process, on systems that have it."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def _report(link: int, line: str) -> None:
    try:
        os.write(link, line.encode() + b"\n")
    except OSError:
        return  # nobody listens any more


def launch(link: int, grace_seconds: float, folder: str, words: list[str]) -> None:
    """Run the command; when this returns, nothing of it is left."""
    os.set_inheritable(link, False)
    _set_option(PR_SET_CHILD_SUBREAPER, 1)  # descendants that lose their parent become ours
    try:
        command = Command(words, link)
    except OSError as error:
        _report(link, f"unstarted {error.errno}")
        return
    command.wait(link)
    is_unwanted = command.code is None
    command.end_all(grace_seconds)
    _report(link, f"ended {command.code}")
    if is_unwanted:
        try:
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)
        except OSError:
            return  # somebody was faster


# -- both --------------------------------------------------------------------------------------------


def _send(send: "Callable[[int, int], None]", target: int, number: int) -> bool:
    """Send a signal; False if the target has ended, or runs as somebody else."""
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        return False
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


if __name__ == "__main__":
    if len(sys.argv) == 1:
        watch()
    else:
        launch(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:])
