"""A life of a runner as an actor, as the program sees it, and the actors of a run."""

import asyncio
import contextlib
import dataclasses
import logging
from typing import Any

from ..lives import End, How, Life, OnReady
from .resources import Amounts
from .runner_actor import Assignment, RunnerActor
from .terms import Terms

log = logging.getLogger(__name__)
TIDY_SECONDS = 5.0  # for the last words of an actor that has ended its work in time
MAX_WORDS = 300


@dataclasses.dataclass(frozen=True)
class RunnerPlan:
    """What every runner of a run is given, and what it holds of its node; `parcel` is a reference of Ray."""

    terms: Terms
    parcel: Any
    resources: Amounts
    graceful_timeout: float
    terminate_timeout: float


class RunnerActors:
    """The actors of a run, by the numbers of their workers. One whose process has died is Ray's to start again; after
    any other end the next life begins with a new one."""

    def __init__(self, plan: RunnerPlan) -> None:
        self._plan = plan
        self._actors: dict[int, Any] = {}

    def begin(self, worker_id: int, finished_before: int, on_ready: OnReady) -> Life:
        return RunnerLife(self, self._plan, worker_id, finished_before, on_ready=on_ready)

    def of(self, worker_id: int) -> Any:
        if worker_id not in self._actors:
            options = {"max_restarts": -1, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
            self._actors[worker_id] = self._plan.terms.hire(RunnerActor, self._plan.resources, **options)
        return self._actors[worker_id]

    def dismiss(self, worker_id: int) -> None:
        """End its process, if there is one; Ray starts no other."""
        import ray

        actor = self._actors.pop(worker_id, None)
        if actor is not None and ray.is_initialized():
            ray.kill(actor)

    def close(self) -> None:
        for worker_id in list(self._actors):
            self.dismiss(worker_id)


class RunnerLife:
    """From a place in the cluster to the last word of the actor, or its death."""

    def __init__(
        self, actors: RunnerActors, plan: RunnerPlan, worker_id: int, finished_before: int, *, on_ready: OnReady
    ) -> None:
        self._actors, self._plan, self._worker_id, self._on_ready = actors, plan, worker_id, on_ready
        self._assignment = Assignment(worker_id, finished_before, plan.graceful_timeout, plan.terminate_timeout)
        self._actor = actors.of(worker_id)
        self._gone = asyncio.Event()
        self._is_asked = False
        self._name: str | None = None
        self._finished = 0

    async def live(self) -> End:
        from ray.exceptions import ActorUnavailableError, RayError

        is_back = False
        try:
            return await self._work()
        except ActorUnavailableError:
            # Ray starts it again. One that was not back in time may have no place: a new one is waited for instead.
            is_back = self._name is not None and not self._is_asked
            return self._end("died", "its process or its node died")
        except RayError as error:
            if self._name is None and self._is_asked:
                return self._end("stopped", "asked to stop")
            if self._name is None:
                return self._end("failed", str(error).strip().splitlines()[-1], type(error).__name__, str(error))
            return self._end("died", _in_words(error))
        finally:
            self._gone.set()
            if not is_back:
                self._actors.dismiss(self._worker_id)

    async def _work(self) -> End:
        from ray.exceptions import RayError

        answer = await self._prepare()
        if "error" in answer:
            words = answer["error"]
            return self._end("failed", words.strip().splitlines()[-1], answer["kind"], words)
        self._name = answer["ready"]
        if self._is_asked:
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(self._actor.leave.remote(), TIDY_SECONDS)
            return self._end("stopped", "asked to stop")
        log.debug("runner %d is ready: %s on node %s", self._worker_id, self._name, answer["node"])
        self._on_ready(answer["ready"])
        async for word in self._actor.work.options(num_returns="streaming").remote():
            said: int | End = await word
            if isinstance(said, End):
                return dataclasses.replace(said, place="actor")
            self._finished = said
        return self._end("died", "its actor exited without a report")

    async def _prepare(self) -> dict[str, Any]:
        plan, given = self._plan, (self._assignment, self._plan.parcel)
        place = {"who": f"runner {self._worker_id}", "setting": "runner_resources"}
        return await plan.terms.prepared(self._actor, *given, amounts=plan.resources, **place)

    def _end(self, how: How, reason: str, kind: str = "", traceback: str = "") -> End:
        is_ready = self._name is not None
        leaves_work = is_ready and how != "stopped"
        return End(how, self._finished, is_ready, self._name, leaves_work, reason, kind, traceback, "actor")

    # -- the end -------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        self._is_asked = True
        if self._name is None:
            self.kill()  # it has nothing in hand
        else:
            self._actor.ask_to_stop.remote()

    async def end_in_order(self) -> None:
        """One that is not at work yet has nothing to hand back."""
        self._is_asked = True
        if self._name is not None:
            self._actor.end_in_order.remote()
            seconds = self._plan.graceful_timeout + self._plan.terminate_timeout + TIDY_SECONDS
            try:
                await asyncio.wait_for(self._gone.wait(), seconds)
                return
            except TimeoutError:
                log.warning("runner %d did not stop within %g s; killing its actor", self._worker_id, seconds)
        self.kill()
        await self._gone.wait()

    def kill(self) -> None:
        self._is_asked = True
        self._actors.dismiss(self._worker_id)


def _in_words(error: BaseException) -> str:
    """The first lines of what Ray says."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:MAX_WORDS]}{'…' * (len(words) > MAX_WORDS)}"
