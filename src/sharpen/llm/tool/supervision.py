"""Waiting for the end of a job, and bringing it about. Any process of the base folder may do both."""

import signal
import time

from .jobs import Job

_FIRST_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 0.5


def wait_for(job: Job, *, seconds: float | None = None) -> bool:
    """Wait until a job has ended, so long at most; whether it has."""
    deadline = None if seconds is None else time.monotonic() + seconds
    pause = _FIRST_LOOK_SECONDS
    while job.is_live():
        left = pause if deadline is None else min(pause, deadline - time.monotonic())
        if left <= 0:
            return False
        time.sleep(left)
        pause = min(pause * 1.5, _LONGEST_LOOK_SECONDS)
    return True


def stop_job(job: Job, *, grace_seconds: float) -> bool:
    """Ask a job to stop, and kill it when it has not ended after its grace. Whether it had to be killed."""
    process = job.process()
    job.mark_stop()
    if process is None:
        return False
    process.signal(signal.SIGTERM)
    try:
        has_ended = wait_for(job, seconds=grace_seconds)
    except KeyboardInterrupt:  # a second Ctrl-C
        has_ended = False
    if has_ended:
        return False
    process.kill_group()
    wait_for(job)
    return True
