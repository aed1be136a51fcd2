"""The program of the processes of a run: `python -m sharpen.execution.child FD ROLE`.

It imports what its role needs, waits for one job, does it and ends. It never runs the user's script. A process whose
parent has gone finishes what it is doing and ends; the store is last, since runners report to it.
"""

import sys
from collections.abc import Callable

from sharpen.process.parent import Job, Parent

IDLE_SECONDS = 300.0  # then a process that nobody needs ends


def work(parent: Parent) -> int:
    """Do one job and return the exit code."""
    role = sys.argv[2]
    do: Callable[[Parent, Job], int]
    if role == "store":
        from sharpen.execution.store_role import serve as do
    else:
        from sharpen.execution.runner_role import run as do
    job = parent.wait_for_job(idle_seconds=IDLE_SECONDS)
    if job is None:
        return 0
    parent.listen(stops_when_orphaned=role != "store")
    if role == "runner":
        parent.show_life()
    return do(parent, job)


if __name__ == "__main__":
    Parent.inherited().run(work)
