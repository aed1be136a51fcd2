"""A runner on its node: the actor that Ray places, and starts again when its process or its node dies.

The bundle runs in a thread with a loop of its own, so the actor answers whatever the agent does.
"""

import asyncio
import os
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from ...runner import worker_name
from ...store.client import connected
from ..lives import End
from ..runner_environment import keep_agents_sdk_private
from ..runner_thread import RunnerThread
from .arrival import Arrival, Parcel, Surroundings

FIRST_PAUSE_SECONDS = 0.02  # between two words of how many rollouts are finished: each costs more than a rollout may
LONGEST_PAUSE_SECONDS = 0.25


@dataclass(frozen=True)
class Assignment:
    """What one life of a runner is to do, and how long it has to end when it is asked to."""

    worker_id: int
    finished_before: int
    graceful_timeout: float
    terminate_timeout: float


class RunnerActor:
    """One life after another of one runner; in a process that has died, Ray begins anew."""

    def __init__(self) -> None:
        self._arrival: Arrival | None = None
        self._life: RunnerThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finished = 0
        self._change = asyncio.Event()

    async def prepare(
        self, version: str, surroundings: Surroundings, assignment: Assignment, parcel: Parcel
    ) -> dict[str, Any]:
        """Be ready to work: the name in the store and the node, or what went wrong."""
        self._end_process_of_an_earlier_life()
        keep_agents_sdk_private()
        try:
            self._arrival = Arrival(version, surroundings, f"runner {assignment.worker_id}")
            bundle = await asyncio.to_thread(self._arrival.unpack, parcel)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the program shows it
            return {"error": traceback.format_exc(), "kind": type(error).__name__}
        self._loop = asyncio.get_running_loop()
        self._life = RunnerThread(
            bundle,
            lambda: connected(surroundings.url, surroundings.token, **surroundings.client),
            assignment.worker_id,
            assignment.finished_before,
            on_ready=lambda _: None,
            graceful_delay=assignment.graceful_timeout,
            join_timeout=assignment.terminate_timeout,
            tell=self._note,
        )
        return {"ready": worker_name(assignment.worker_id), "node": _node()}

    def _end_process_of_an_earlier_life(self) -> None:
        """The program lost sight of it, but it lives, and would work on beside the next one: Ray starts another."""
        if self._life is not None:
            assert self._arrival is not None
            self._arrival.leave()
            os._exit(1)

    def _note(self, count: int) -> None:
        """From the thread of the bundle."""
        self._finished = count
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._change.set)

    async def work(self) -> AsyncIterator[int | End]:
        """Work; how many rollouts are finished, now and then, and at last how it ended."""
        assert self._life is not None
        assert self._arrival is not None
        living = asyncio.create_task(self._life.live())
        pause = FIRST_PAUSE_SECONDS
        while not await self._has_ended(living):
            self._change.clear()
            yield self._finished
            await asyncio.wait([living], timeout=pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
        self._arrival.leave()
        yield living.result()

    async def _has_ended(self, living: "asyncio.Task[End]") -> bool:
        """Wait for the end, or for something to tell."""
        change = asyncio.create_task(self._change.wait())
        await asyncio.wait([living, change], return_when=asyncio.FIRST_COMPLETED)
        change.cancel()
        return living.done()

    async def leave(self) -> None:
        """It was not needed after all."""
        assert self._arrival is not None
        self._arrival.leave()

    async def ask_to_stop(self) -> None:
        if self._life is not None:
            self._life.ask_to_stop()

    async def end_in_order(self) -> None:
        if self._life is not None:
            await self._life.end_in_order()


def _node() -> str:
    import ray

    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id
