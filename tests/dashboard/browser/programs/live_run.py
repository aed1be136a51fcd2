"""A run that goes on when it is told to, so that a test can watch it: `python -m … ROLE FOLDER [PORT]`.

Files in the folder are the signs: `round-N` lets the algorithm begin a round, `end` ends the run, `go` lets agents
finish, and `mended` mends what one of the tasks fails with. The store is served with the token in `SHARPEN_TOKEN`, and
the dashboard beside it.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from sharpen import Algorithm, Trainer, emit_message, rollout
from sharpen.execution import ClientServerExecutionStrategy

ROUND = 4


class Signs:
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()


class Told(Algorithm[Any]):
    """A round for every sign: the first task of each is queued before the others."""

    def __init__(self, folder: str) -> None:
        self.signs = Signs(folder)

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store, number = self.get_store(), 0
        while not self.signs.has("end"):
            if not self.signs.has(f"round-{number + 1}"):
                await asyncio.sleep(0.05)
                continue
            number += 1
            tasks = [{"round": number, "task": place, "folder": str(self.signs.folder)} for place in range(ROUND)]
            asked = [await store.enqueue_rollout(t, "train", rollout_id=f"ro-{number}-{t['task']}") for t in tasks]
            await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in asked])
            self.report_iteration({"loss": 1 / number}, val_metrics={"reward_mean": number / 10})


@rollout
def agent(task: dict[str, Any]) -> float:
    """The second task of a round fails until it is mended; all wait for the sign."""
    signs = Signs(task["folder"])
    emit_message(f"round {task['round']}, task {task['task']}: working")
    while not signs.has("go"):
        time.sleep(0.02)
    if task["task"] == 1 and not signs.has("mended"):
        raise RuntimeError("the tool is broken")
    return task["round"] / 10


def main(role: str, folder: str, port: str | None = None) -> None:
    given = None if port is None else int(port)
    strategy = ClientServerExecutionStrategy(role=role, server_port=given, n_runners=2)  # type: ignore[arg-type]
    strategy.server_port = given  # None: not the usual one of roles apart, but a free one, which the log names
    options: dict[str, Any] = {"strategy": strategy, "rollout_config": {"max_attempts": 1}}
    if role == "algorithm":
        options |= {"algorithm": Told(folder), "run_dir": Path(folder) / "live"}
    Trainer(**options).fit(agent, [0])


if __name__ == "__main__":
    main(*sys.argv[1:])
