"""Children of the tests: `python -m tests.process.programs.children FD BEHAVIOUR ARGUMENT…`."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.execution.processes import is_running
from tests.process.internals import ChannelClosed, Parent

BIG = 24 << 20


def echo(parent: Parent) -> int:
    """Return every message until the parent asks for the end."""
    parent.send_ready(b"here")
    try:
        while (message := parent.receive()) is not None:
            parent.send(message)
    except ChannelClosed:
        return 7
    return 0


def send_first(parent: Parent) -> int:
    """Send a large message before receiving one."""
    parent.send(b"c" * BIG)
    message = parent.receive()
    parent.send(b"%d" % len(message or b""))
    return 0


def do_job(parent: Parent) -> int:
    job = parent.wait_for_job()
    assert job is not None
    job.context.apply("child")
    print("printed by the job")
    os.write(job.files[0], b"file " + job.payload[-3:])
    parent.send(repr((job.options, len(job.payload), os.environ.get("ODD"), os.getcwd(), sys.argv)).encode())
    return 0


def stop_when_asked(parent: Parent) -> int:
    parent.listen()
    parent.send_ready()
    parent.stop_requested.wait()
    return 5


def ignore_everything(parent: Parent) -> int:
    """Neither requests nor signals end it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent.send_ready()
    while True:
        time.sleep(60)


def die_of_sigint(parent: Parent) -> int:
    parent.send_ready()
    time.sleep(60)
    return 0


def hang_at_start(parent: Parent) -> int:
    print("loading something large", file=sys.stderr, flush=True)
    time.sleep(60)
    return 0


def fail_at_start(parent: Parent) -> int:
    raise ValueError("bad port 99999")


def write_garbage(parent: Parent) -> int:
    os.write(int(sys.argv[1]), b"print() into the socket\n")
    time.sleep(60)
    return 0


def start_another(parent: Parent) -> int:
    """Leave a process behind."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    parent.send(b"%d" % process.pid)
    return 0


def print_much(parent: Parent) -> int:
    print("first line")
    for number in range(20_000):
        print(f"line {number} " + "x" * 90)
    print("last line")
    return 3


def hold_the_lock(parent: Parent) -> int:
    """Nothing in this process can act any more."""
    parent.wait_for_job()
    signal.signal(signal.SIGTERM, lambda *_: None)
    parent.listen()
    parent.show_life(0.05)
    parent.send_ready()
    time.sleep(0.3)
    Path(sys.argv[3]).touch()
    re.match(r"(a+)+$", "a" * 60 + "b")
    return 0


def show_life(parent: Parent) -> int:
    parent.wait_for_job()
    parent.listen()
    parent.show_life(0.05)
    parent.stop_requested.wait()
    return 0


def outlive_signals(parent: Parent) -> int:
    """End by itself once the parent has gone, with whatever it has started; SIGTERM does nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent.on_gone = Path(sys.argv[3]).touch
    parent.listen(orphan_seconds=0.2)
    parent.send_ready()
    parent.stop_requested.wait()
    return 0


def note_the_end(parent: Parent) -> int:
    """Write down what is left of another process when SIGTERM comes."""
    note, other = Path(sys.argv[3]), int(sys.argv[4])

    def write(*_: object) -> None:
        note.write_text(str(is_running(other)))
        os._exit(0)

    signal.signal(signal.SIGTERM, write)
    parent.send_ready()
    time.sleep(60)
    return 0


if __name__ == "__main__":
    Parent.inherited().run(globals()[sys.argv[2]])
