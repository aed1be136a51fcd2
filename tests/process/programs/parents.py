"""A parent that a test kills: `parents.py FOLDER CASE`. It prints the processes that must end with it."""

import os
import signal
import sys
import time
from pathlib import Path

from tests.process.children import child, command
from tests.process.internals import Job, OrphanRule, kit

folder, case = Path(sys.argv[1]), sys.argv[2]
if case == "lock held":
    held = child("hold_the_lock", folder / "held", orphan=OrphanRule(0.2, 0.6))
    held.send_job(Job({}))
    held.wait_ready(60)
    pids = [held.pid]
elif case == "stages":
    first = child("ignore_everything", orphan=OrphanRule(0.1, 0.5))
    first.wait_ready(60)
    second = child("note_the_end", folder / "note", first.pid, orphan=OrphanRule(0.0, 5.0, stage=1))
    second.wait_ready(60)
    pids = [first.pid, second.pid]
elif case == "watcher killed":
    alone = child("outlive_signals", folder / "gone")
    alone.wait_ready(60)
    os.kill(kit.watched._process.pid, signal.SIGKILL)
    pids = [alone.pid]
elif case == "forked":
    alone = child("outlive_signals", folder / "gone", orphan=None)
    alone.wait_ready(60)
    if os.fork() == 0:
        time.sleep(30)  # a fork must not keep the channel open
        os._exit(0)
    pids = [alone.pid]
else:
    script = "trap '' TERM; setsid sleep 60 & echo $! $$; wait"
    shell = command("sh", "-c", script, grace_seconds=0.3)
    while len(shell.stdout.text.split()) < 2:
        time.sleep(0.01)
    pids = [int(each) for each in shell.stdout.text.split()]
print(*pids, flush=True)
time.sleep(60)
