"""`LitAgent`: the base class of agents, which are run on every task.

Trainer and runner are held by weak references that do not travel to another process, so an agent never carries a
whole run along. A subclass need not call `super().__init__()`.
"""

import asyncio
import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import ConfigError
from ..types import NamedResources, Rollout, RolloutRawResult

if TYPE_CHECKING:
    from ..runner import Runner
    from ..tracer import Tracer
    from ..trainer import Trainer

T = TypeVar("T")

_SYNC = ("rollout", "training_rollout", "validation_rollout")
_ASYNC = ("rollout_async", "training_rollout_async", "validation_rollout_async")
WEAK_REFERENCES = ("_trainer_ref", "_runner_ref")


class LitAgent(Generic[T]):
    """Base class for agents. Override `rollout` or `rollout_async`; if training and validation differ, override their
    methods.

    Args:
        trained_agents: Pattern for the names of agents, inside this one, whose LLM calls are trained; None for all.
    """

    trained_agents: str | None = None
    _trainer_ref: "weakref.ref[Trainer] | None" = None
    _runner_ref: "weakref.ref[Runner[Any]] | None" = None

    def __init__(self, *, trained_agents: str | None = None) -> None:
        self.trained_agents = trained_agents

    # -- what to override ----------------------------------------------------------------------------

    def rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Run the agent on one task; a returned number is the final reward."""
        raise self._nothing_to_run()

    async def rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Run the agent as a coroutine. If only `rollout` is overridden, it runs in a thread."""
        if not self._overrides("rollout"):
            raise self._nothing_to_run()
        return await _run(self.rollout, task, resources, rollout)

    def training_rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Run a rollout in train mode."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Run a rollout in any other mode."""
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Run a rollout in train mode, as a coroutine."""
        method = self.training_rollout if self._overrides("training_rollout") else self.rollout_async
        return await _run(method, task, resources, rollout)

    async def validation_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Run a rollout in any other mode, as a coroutine."""
        method = self.validation_rollout if self._overrides("validation_rollout") else self.rollout_async
        return await _run(method, task, resources, rollout)

    def is_async(self) -> bool:
        """Return whether the runner awaits this agent; otherwise it calls the sync methods in a thread."""
        written = (getattr(self, name) for name in _SYNC)
        return any(map(self._overrides, _ASYNC)) or any(map(inspect.iscoroutinefunction, written))

    # -- trainer, runner, tracer ---------------------------------------------------------------------

    def set_trainer(self, trainer: "Trainer") -> None:
        self._trainer_ref = weakref.ref(trainer)

    def get_trainer(self) -> "Trainer":
        return _alive(self._trainer_ref, "trainer")

    @property
    def trainer(self) -> "Trainer":
        return self.get_trainer()

    def set_runner(self, runner: "Runner[Any]") -> None:
        self._runner_ref = weakref.ref(runner)

    def get_runner(self) -> "Runner[Any]":
        return _alive(self._runner_ref, "runner")

    @property
    def runner(self) -> "Runner[Any]":
        return self.get_runner()

    def get_tracer(self) -> "Tracer":
        """Return the tracer that records this agent: the runner's, otherwise the trainer's."""
        for reference in (self._runner_ref, self._trainer_ref):
            found: Tracer | None = getattr(reference and reference(), "tracer", None)
            if found is not None:
                return found
        raise ConfigError(
            "this agent has no tracer: it has one while a runner or a trainer runs it; set one with "
            "set_runner or set_trainer"
        )

    @property
    def tracer(self) -> "Tracer":
        return self.get_tracer()

    # -- the rest ------------------------------------------------------------------------------------

    def __getstate__(self) -> object:
        """What travels to another process: everything but the references to trainer and runner."""
        state = super().__getstate__()
        attributes, *slots = state if isinstance(state, tuple) else (state,)
        if isinstance(attributes, dict):
            attributes = {name: value for name, value in attributes.items() if name not in WEAK_REFERENCES}
        return (attributes, *slots) if slots else attributes

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(LitAgent, name)

    def _nothing_to_run(self) -> NotImplementedError:
        kind = type(self).__name__
        if self._overrides("rollout_async"):
            return NotImplementedError(f"{kind} is async: await its rollout_async, or override rollout as well")
        return NotImplementedError(
            f"{kind} implements neither method: override rollout(self, task, resources, rollout), "
            "or async rollout_async(self, task, resources, rollout)"
        )


H = TypeVar("H")


def _alive(reference: "weakref.ref[H] | None", what: str) -> H:
    if reference is None:
        raise ConfigError(f"this agent has no {what} yet: set it with set_{what}")
    found = reference()
    if found is None:
        raise ConfigError(
            f"the {what} of this agent no longer exists: the agent holds only a weak reference, so keep one yourself"
        )
    return found


async def _run(method: Callable[..., Any], *arguments: Any) -> RolloutRawResult:
    """Await a coroutine function; a plain one must not block the loop."""
    is_async = inspect.iscoroutinefunction(method)
    result: RolloutRawResult = await (method(*arguments) if is_async else asyncio.to_thread(method, *arguments))
    return result
