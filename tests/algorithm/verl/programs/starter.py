"""Starts training programs without the seconds that imports take: one for every line of its input.

A line is the options of `train`, with `notes` and `output`, in JSON; the answer is a process id, which leads a session
of its own. A line with `wait` instead is answered with the exit code of that process, less than 0 for a signal.
"""

import json
import os
import sys
from typing import Any

import matplotlib.pyplot  # noqa: F401 - imported here, once
import peft  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401

from tests.algorithm.internals import verl_loop as training_run  # noqa: F401
from tests.algorithm.verl.programs import agents, train


def begin(options: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.environ[agents.NOTES] = options["notes"]
    output = os.open(options["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    train.main(options)
    sys.exit()


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


for line in sys.stdin:
    request = json.loads(line)
    print(end_of(request["wait"]) if "wait" in request else begin(request), flush=True)
