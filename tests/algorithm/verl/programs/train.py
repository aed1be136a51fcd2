"""Trains a tiny model with the default strategy: `python train.py OPTIONS`, in JSON.

`model` and `folder` are paths; a run that is in the folder is gone on with. `grpo` and `trainer` are arguments of
these, `agent` the name of one. The rest is about the machine: `die_at` is a pattern of an event and its arguments, such
as `os.rename .*step_3`, at which the process is killed; `slow_loading` and `slow_training` make it take its time, and
`largest_file` limits files from the second step on.
"""

import itertools
import json
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from sharpen import GRPO, Trainer
from sharpen.callbacks import Callback
from tests.algorithm.verl.programs import agents

SETTINGS = {
    "group_size": 4,
    "batch_size": 4,
    "learning_rate": 1e-2,
    "steps": 6,
    "max_response_length": 8,
    "seed": 1,
}
SLICE_SECONDS = 0.02


class SmallDisk(Callback):
    """Files cannot grow beyond a size, from the second step on."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size_bytes, resource.RLIM_INFINITY))


def die_at(pattern: str) -> None:
    wanted = re.compile(pattern)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "shutil.rmtree") and wanted.match(f"{event} {' '.join(map(str, arguments))}"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def take_time(what: str) -> None:
    """As one long computation would, for ever."""
    agents.note(what)
    while True:
        time.sleep(SLICE_SECONDS)


def slow_loading(model: str) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(model):
            take_time("loading")

    sys.addaudithook(hook)


def slow_training(after: int) -> None:
    """From some backward pass on."""
    passes = itertools.count(1)
    backward = torch.Tensor.backward

    def slow(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if next(passes) > after:
            take_time("training")
        backward(tensor, *args, **kwargs)

    torch.Tensor.backward = slow  # type: ignore[method-assign]


def main(options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    model, folder = options["model"], Path(options["folder"])
    if "die_at" in options:
        die_at(options["die_at"])
    if options.get("slow_loading"):
        slow_loading(model)
    if "slow_training" in options:
        slow_training(options["slow_training"])
    callbacks = [SmallDisk(options["largest_file"])] if "largest_file" in options else []
    algorithm = GRPO(model, **(SETTINGS | options.get("grpo", {})))
    parts = {"n_runners": 2, "run_dir": folder, "callbacks": callbacks} | options.get("trainer", {})
    trainer = Trainer(algorithm=algorithm, **parts)
    agent = getattr(agents, options.get("agent", "even"))
    trainer.fit(agent, agents.TASKS, resume=folder if folder.exists() else None)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
