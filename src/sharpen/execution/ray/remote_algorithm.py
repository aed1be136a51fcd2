"""The algorithm as an actor, as the program sees it: a call that is cancelled and told of the run like one here."""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...store import LightningStore
from ..base import AlgorithmBundle
from ..events import ExecutionEvent, Reach, RunEvent
from .algorithm_actor import CANCELLED, END_RUNNERS, AlgorithmActor
from .errors import unpacked
from .resources import Amounts
from .terms import Terms

LOOK_SECONDS = 0.05


class RemoteAlgorithm:
    """An algorithm bundle that runs the given one, which is packed in `parcel`, elsewhere: where its resources are, or
    on the node of the program."""

    def __init__(
        self, algorithm: AlgorithmBundle, terms: Terms, parcel: Any, resources: Amounts | None, reach: Reach
    ) -> None:
        self._algorithm, self._terms, self._resources = algorithm, terms, resources
        self._parcel, self._reach = parcel, reach
        self.cancelled_on_stop: bool = getattr(algorithm, "cancelled_on_stop", False)

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        import ray

        on_begin = getattr(self._algorithm, "on_begin", None)
        if on_begin is not None:
            on_begin()
        actor = self._new()
        following = asyncio.create_task(_follow(actor, event))
        try:
            with _marked(_folders_of(self._algorithm)) as marks:
                await self._prepare(actor, marks)
            await _to_the_end(actor, asyncio.create_task(_listen(actor, event)))
        finally:
            following.cancel()
            ray.kill(actor)

    def _new(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = {"scheduling_strategy": NodeAffinitySchedulingStrategy(self._terms.node_id, soft=False)}
        return self._terms.hire(AlgorithmActor, self._resources or {}, **(here if self._resources is None else {}))

    async def _prepare(self, actor: Any, marks: Sequence[str]) -> None:
        given = (marks, (self._terms.node_id, self._reach), self._parcel)
        place = {"who": "the algorithm", "setting": "algorithm_resources"}
        answer = await self._terms.prepared(actor, *given, amounts=self._resources or {}, **place)
        if answer:
            raise unpacked(answer["error"], answer["traceback"])


async def _to_the_end(actor: Any, listening: "asyncio.Task[None]") -> None:
    """A cancellation is passed on: the algorithm ends as it sees fit."""
    while True:
        try:
            await asyncio.shield(listening)
            return
        except asyncio.CancelledError:
            if listening.done():
                raise
            await actor.cancel.remote()


async def _listen(actor: Any, event: ExecutionEvent) -> None:
    from ray.exceptions import RayError

    try:
        async for reference in actor.run.options(num_returns="streaming").remote():
            word = await reference
            if word == END_RUNNERS and isinstance(event, RunEvent):
                event.end_runners()
            elif word == CANCELLED:
                raise asyncio.CancelledError
            elif isinstance(word, dict):
                raise unpacked(word["error"], word["traceback"])
    except RayError as error:
        raise RunError(
            f"the algorithm's actor died ({type(error).__name__}): fit(..., resume='last') continues the run from "
            "its last checkpoint"
        ) from error


async def _follow(actor: Any, event: ExecutionEvent) -> None:
    """Tell the actor what becomes of the run."""
    while not event.is_set():  # noqa: ASYNC110 - it is set by a signal or another thread
        await asyncio.sleep(LOOK_SECONDS)
    await actor.set_event.remote()
    while isinstance(event, RunEvent) and not event.have_runners_ended():  # noqa: ASYNC110 - as above
        await asyncio.sleep(LOOK_SECONDS)
    await actor.note_runners_ended.remote()


def _folders_of(algorithm: object) -> list[Path]:
    """Where it writes what the program reads, as far as it says so."""
    tell = getattr(algorithm, "folders", None)
    return [] if tell is None else list(tell())


@contextlib.contextmanager
def _marked(folders: Sequence[Path]) -> Iterator[list[str]]:
    """A file in each, by which the folder is known from elsewhere."""
    marks = [folder.absolute() / f".mark-{secrets.token_hex(8)}" for folder in folders]
    try:
        for mark in marks:
            mark.touch()
        yield [str(mark) for mark in marks]
    finally:
        for mark in marks:
            mark.unlink(missing_ok=True)
