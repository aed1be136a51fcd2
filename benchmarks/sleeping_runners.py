"""Runners of `queue_costs.py`: each a process of its own whose agent sleeps, all forked from one that has its imports.

It is driven by lines of JSON, as `line_process.py` says; a round lasts `warm_up_seconds` and then `seconds`.
"""

import asyncio
import logging
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from line_process import Figures, next_line, say
from scale_clients import claim, finish_and_claim
from scale_stores import open_store


async def work(job: Figures, name: str, pipe: "Connection[Any, Any]") -> None:
    """One runner: a turn after another, round by round; how many turns ended in time, and how many there were."""
    store = open_store(job["url"])
    rollout = await claim(store, name)
    pipe.send(True)
    while pipe.recv():
        begin = time.monotonic() + job["warm_up_seconds"]
        end, counted, turns = begin + job["seconds"], 0, 0
        while time.monotonic() < end:
            if job["agent_seconds"]:
                await asyncio.sleep(job["agent_seconds"])
            rollout = await finish_and_claim(store, rollout, name)
            turns += 1
            counted += begin <= time.monotonic() < end
        pipe.send((counted, turns))
    await store.close()


def runner(job: Figures, name: str, pipe: "Connection[Any, Any]") -> None:
    asyncio.run(work(job, name, pipe))


def main() -> None:
    logging.disable(logging.WARNING)
    job, forking = next_line() or {}, multiprocessing.get_context("fork")
    pipes = []
    for number in range(job["runners"]):
        ours, theirs = forking.Pipe()
        forking.Process(target=runner, args=(job, f"runner-{number}", theirs), daemon=True).start()
        pipes.append(ours)
    say({"ready": all(pipe.recv() for pipe in pipes)})
    while next_line() is not None:
        for pipe in pipes:
            pipe.send(True)
        seen = [pipe.recv() for pipe in pipes]
        say({"done": sum(counted for counted, _ in seen), "all": sum(turns for _, turns in seen)})
    for pipe in pipes:
        pipe.send(False)


if __name__ == "__main__":
    main()
