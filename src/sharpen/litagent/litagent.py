"""Agents: `LitAgent`, the class to derive from, and functions as agents: `@rollout`, `@llm_rollout`, `@prompt_rollout`.

Trainer and runner are held by weak references that do not travel to another process, so an agent never carries a
whole run along. A subclass need not call `super().__init__()`.

The parameters of a function are filled by name. The decorated thing stays callable as the plain function. It travels to
another process by the name of its module where it has one, and by value where the function stands in a script, a
notebook or another function.
"""

import asyncio
import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

import msgspec

from ..errors import ComponentTypeError, ConfigError, InvalidInputError, MissingResourceError, TransportError
from ..secrets import shown
from ..types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Rollout, RolloutRawResult

if TYPE_CHECKING:
    from ..runner import Runner
    from ..tracer import Tracer
    from ..trainer import Trainer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_SYNC = ("rollout", "training_rollout", "validation_rollout")
_ASYNC = ("rollout_async", "training_rollout_async", "validation_rollout_async")
_WEAK_REFERENCES = ("_trainer_ref", "_runner_ref")


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
            attributes = {name: value for name, value in attributes.items() if name not in _WEAK_REFERENCES}
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


# -- functions ---------------------------------------------------------------------------------------

KNOWN = ("task", "llm", "prompt_template", "resources", "rollout")
_OPEN_ENDED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _FunctionByName(NamedTuple):
    """Stands for the function of a decorated agent on its way to another process."""

    module: str
    qualname: str

    def find(self) -> Callable[..., Any]:
        found = _look_up(import_module(self.module), self.qualname)
        function: Callable[..., Any] = found.function if isinstance(found, FunctionalLitAgent) else found
        if not callable(function):
            raise TransportError(f"the module {self.module} has no agent {self.qualname!r} in this process")
        return function


class FunctionalLitAgent(LitAgent[Any], Generic[P, R]):
    """An agent made from a function. A parameter with a default keeps it where the resource is missing."""

    __wrapped__: Callable[P, R]

    def __init__(self, rollout_func: Callable[P, R], *, strip_proxy: bool = True) -> None:
        super().__init__()
        _check_function(rollout_func)
        functools.update_wrapper(self, rollout_func)
        self._strip_proxy = strip_proxy
        _check_parameters(self._parameters, rollout_func.__name__)

    @property
    def function(self) -> Callable[P, R]:
        """The function as it was written."""
        return self.__wrapped__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.__wrapped__)

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        if self.is_async():
            raise NotImplementedError(f"{self._name()} is async: await its rollout_async")
        result: RolloutRawResult = self._call(task, resources, rollout)
        return result

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        if not self.is_async():
            return await super().rollout_async(task, resources, rollout)
        result: RolloutRawResult = await self._call(task, resources, rollout)
        return result

    @functools.cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        """What a call has to fill; `*args` and `**kwargs` stay empty."""
        return [p for p in inspect.signature(self.__wrapped__).parameters.values() if p.kind not in _OPEN_ENDED]

    def asks_for(self, name: str) -> bool:
        """Whether it cannot be called without this parameter."""
        return any(each.name == name and each.default is each.empty for each in self._parameters)

    def _call(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        args, kwargs = [], {}
        for parameter in self._parameters:
            value = self._value(parameter, task, resources, rollout)
            if parameter.kind is parameter.POSITIONAL_ONLY:
                args.append(value)
            else:
                kwargs[parameter.name] = value
        call: Callable[..., Any] = self.__wrapped__
        return call(*args, **kwargs)

    def _value(self, parameter: inspect.Parameter, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        if parameter.name == "llm":
            return _pick_llm(self._name(), parameter, resources, rollout, strip_proxy=self._strip_proxy)
        if parameter.name == "prompt_template":
            return _first(PromptTemplate, self._name(), parameter, resources)
        return {"task": task, "resources": resources, "rollout": rollout}.get(parameter.name, parameter.default)

    def _name(self) -> str:
        return str(getattr(self.__wrapped__, "__name__", self.__wrapped__))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name()}>"

    # -- travelling ----------------------------------------------------------------------------------

    def __getstate__(self) -> object:
        by_name = _by_name(self.__wrapped__)
        left_out = {"_parameters", *_WEAK_REFERENCES, *(_FROM_FUNCTION if by_name else ())}
        own = {key: value for key, value in vars(self).items() if key not in left_out}
        return {**own, "__wrapped__": by_name or self.__wrapped__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        function = state["__wrapped__"]
        if isinstance(function, _FunctionByName):
            functools.update_wrapper(self, function.find())
            state = {key: value for key, value in state.items() if key != "__wrapped__"}
        self.__dict__.update(state)


# Taken from the function again on arrival, where it is found by name.
_FROM_FUNCTION = functools.WRAPPER_ASSIGNMENTS


def _check_function(function: Any) -> None:
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise ComponentTypeError(f"{shown(function)} cannot be an agent: decorate a sync or async function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ComponentTypeError(f"{function.__name__} is a generator: an agent must return its result, not yield it")


def _look_up(module: Any, qualname: str) -> Any:
    return functools.reduce(lambda found, part: getattr(found, part, None), qualname.split("."), module)


def _by_name(function: Callable[..., Any]) -> _FunctionByName | None:
    """The name under which another process finds the function: the name that its agent has in the module.

    Pickling would look the function up under this name, find the agent instead, and give up or copy the function
    together with all that it uses.
    """
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module is None or module == "__main__" or module not in sys.modules or _goes_by_value(module):
        return None
    found = _look_up(sys.modules[module], qualname)
    named = isinstance(found, FunctionalLitAgent) and found.function is function
    return _FunctionByName(module, qualname) if named else None


def _goes_by_value(module: str) -> bool:
    """Whether the user asked cloudpickle to send this module's code along."""
    cloudpickle = sys.modules.get("cloudpickle")
    registered: set[str] = cloudpickle.list_registry_pickle_by_value() if cloudpickle else set()
    return any(module == name or module.startswith(f"{name}.") for name in registered)


# -- parameters --------------------------------------------------------------------------------------


def _check_parameters(parameters: list[inspect.Parameter], name: str) -> None:
    """Refuse a function that could never be called, where it is decorated."""
    unknown = [p.name for p in parameters if p.name not in KNOWN and p.default is p.empty]
    if unknown:
        is_method = unknown[0] in ("self", "cls")
        hint = " (a method cannot be decorated: write a subclass of LitAgent)" if is_method else ""
        raise ConfigError(
            f"{name} has an unknown parameter {unknown[0]!r}: parameters are filled by name with "
            f"{', '.join(KNOWN)}; rename it or give it a default{hint}"
        )
    if not any(p.name in KNOWN for p in parameters):
        raise ConfigError(f"{name} takes no parameters: it may take {', '.join(KNOWN)}")


def _pick_llm(
    agent: str, parameter: inspect.Parameter, resources: NamedResources, rollout: Rollout, *, strip_proxy: bool
) -> Any:
    """The first LLM: bound to this attempt where it stands behind the gateway, its key at hand."""
    llm = _first(LLM, agent, parameter, resources)
    if not isinstance(llm, LLM):
        return llm
    if isinstance(llm, ProxyLLM) and strip_proxy:
        if not isinstance(rollout, AttemptedRollout):
            raise InvalidInputError(
                f"the agent {agent} received a ProxyLLM, whose URL names the attempt, but rollout "
                f"{rollout.rollout_id!r} has no attempt: pass an AttemptedRollout, or decorate with "
                "@llm_rollout(strip_proxy=False)"
            )
        llm = llm.with_attempted_rollout(rollout)
    parameters = llm.resolve_sampling_parameters()
    return msgspec.structs.replace(llm, api_key=llm.resolve_api_key(), sampling_parameters=parameters)


def _first(kind: type[Any], agent: str, parameter: inspect.Parameter, resources: NamedResources) -> Any:
    found = next((resource for resource in resources.values() if isinstance(resource, kind)), None)
    if found is not None:
        return found
    if parameter.default is not parameter.empty:
        return parameter.default
    described = (f"{name!r} ({type(resource).__name__})" for name, resource in resources.items())
    there = ", ".join(described) or "no resources"
    raise MissingResourceError(
        f"the agent {agent} takes {parameter.name}, but its rollout has no {kind.__name__} (it has {there}); "
        "pass one in the Trainer's initial_resources, or publish it with add_resources"
    )


# -- decorators --------------------------------------------------------------------------------------


@overload
def rollout(func: Callable[P, R]) -> FunctionalLitAgent[P, R]: ...
@overload
def rollout() -> Callable[[Callable[P, R]], FunctionalLitAgent[P, R]]: ...
def rollout(func: Callable[..., Any] | None = None) -> Any:
    """Make a function an agent; it may ask for `task, llm, prompt_template, resources, rollout`."""
    return FunctionalLitAgent if func is None else FunctionalLitAgent(func)


@overload
def llm_rollout(func: Callable[P, R], *, strip_proxy: bool = True) -> FunctionalLitAgent[P, R]: ...
@overload
def llm_rollout(*, strip_proxy: bool = True) -> Callable[[Callable[P, R]], FunctionalLitAgent[P, R]]: ...
def llm_rollout(func: Callable[..., Any] | None = None, *, strip_proxy: bool = True) -> Any:
    """Make a function that asks for an `llm` an agent, as `rollout` does.

    A `ProxyLLM` is bound to the attempt and given as a plain `LLM`, unless `strip_proxy=False`.
    """

    def decorate(function: Callable[P, R]) -> FunctionalLitAgent[P, R]:
        return _asking_for("llm", "@llm_rollout", FunctionalLitAgent(function, strip_proxy=strip_proxy))

    return decorate if func is None else decorate(func)


@overload
def prompt_rollout(func: Callable[P, R]) -> FunctionalLitAgent[P, R]: ...
@overload
def prompt_rollout() -> Callable[[Callable[P, R]], FunctionalLitAgent[P, R]]: ...
def prompt_rollout(func: Callable[..., Any] | None = None) -> Any:
    """Make a function that asks for a `prompt_template` an agent, as `rollout` does."""

    def decorate(function: Callable[P, R]) -> FunctionalLitAgent[P, R]:
        return _asking_for("prompt_template", "@prompt_rollout", FunctionalLitAgent(function))

    return decorate if func is None else decorate(func)


def _asking_for(parameter: str, decorator: str, agent: FunctionalLitAgent[P, R]) -> FunctionalLitAgent[P, R]:
    if parameter not in inspect.signature(agent.function).parameters:
        raise ConfigError(f"{agent!r} has no parameter {parameter!r}, which {decorator} fills: add it, or use @rollout")
    return agent


def as_agent(thing: Any) -> LitAgent[Any]:
    """An agent from what people pass as one: an agent, a class of agents, a function."""
    if isinstance(thing, LitAgent):
        return thing
    if isinstance(thing, type) and issubclass(thing, LitAgent):
        return _instance(thing)
    if inspect.isfunction(thing) or inspect.ismethod(thing):
        return FunctionalLitAgent(thing)
    raise ComponentTypeError(
        f"{shown(thing)} is not an agent: pass a LitAgent, a subclass of it, or a sync or async function"
    )


def _instance(kind: type[LitAgent[Any]]) -> LitAgent[Any]:
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise ComponentTypeError(
            f"{kind.__name__} cannot be built without arguments ({error}): pass an instance"
        ) from None
    return kind()
