"""Agents in a module that other processes can import, for the tests of travelling."""

import threading

from sharpen.litagent import LitAgent, llm_rollout, rollout

# It cannot be pickled: an agent that travelled by value would take it along and fail.
LOCK = threading.Lock()


@rollout
def guarded(task: int, *, step: int = 1) -> float:
    """Adds one step to the task, one caller at a time."""
    with LOCK:
        return float(task + step)


@llm_rollout(strip_proxy=False)
async def asking(task: str, llm) -> float:
    return float(len(task + llm.endpoint))


class Grouped:
    @staticmethod
    def plain(task: int) -> float:
        return task * 2.0


class Summing(LitAgent[list[int]]):
    def rollout(self, task, resources, rollout):
        return float(sum(task))
