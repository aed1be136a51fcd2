"""Names for components.

A name stands for a class or for the import path of one, so that knowing a name imports nothing. A name never changes
its meaning: registering it for another class is an error, and a built-in name cannot be registered at all.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from ..errors import ComponentError
from ..secrets import shown

Maker = Callable[..., Any]
Target = Maker | str
M = TypeVar("M", bound=Maker)
T = TypeVar("T")

BUILT_IN: dict[str, str] = {
    "Checkpoint": "sharpen.callbacks.Checkpoint",
    "EarlyStopping": "sharpen.callbacks.EarlyStopping",
    "MetricsWriter": "sharpen.callbacks.MetricsWriter",
    "ConsoleLogger": "sharpen.loggers.ConsoleLogger",
    "console": "sharpen.loggers.ConsoleLogger",
    "CsvLogger": "sharpen.loggers.CsvLogger",
    "csv": "sharpen.loggers.CsvLogger",
    "JsonlLogger": "sharpen.loggers.JsonlLogger",
    "jsonl": "sharpen.loggers.JsonlLogger",
    "TensorBoardLogger": "sharpen.loggers.TensorBoardLogger",
    "tensorboard": "sharpen.loggers.TensorBoardLogger",
    "WandbLogger": "sharpen.loggers.WandbLogger",
    "wandb": "sharpen.loggers.WandbLogger",
    "MlflowLogger": "sharpen.loggers.MlflowLogger",
    "mlflow": "sharpen.loggers.MlflowLogger",
    "PickleLogger": "sharpen.loggers.PickleLogger",
    "pickle": "sharpen.loggers.PickleLogger",
    "APO": "sharpen.algorithm.APO",
    "AgentOpsTracer": "sharpen.tracer.AgentOpsTracer",
    "AlgorithmSequence": "sharpen.algorithm.AlgorithmSequence",
    "Baseline": "sharpen.algorithm.Baseline",
    "ClientServerExecutionStrategy": "sharpen.execution.ClientServerExecutionStrategy",
    "PostgresStore": "sharpen.store.PostgresStore",
    "RedisLightningStore": "sharpen.store.RedisLightningStore",
    "CommandAgent": "sharpen.litagent.CommandAgent",
    "DummyTracer": "sharpen.tracer.DummyTracer",
    "FewShot": "sharpen.algorithm.FewShot",
    "GEPA": "sharpen.algorithm.GEPA",
    "GRPO": "sharpen.algorithm.GRPO",
    "InMemoryLightningStore": "sharpen.store.InMemoryLightningStore",
    "LightningStoreClient": "sharpen.store.LightningStoreClient",
    "LightningStoreThreaded": "sharpen.store.LightningStoreThreaded",
    "LLMProxy": "sharpen.llm_proxy.LLMProxy",
    "LLMProxyClient": "sharpen.llm_proxy.LLMProxyClient",
    "LitAgentRunner": "sharpen.runner.LitAgentRunner",
    "LlmProxyTraceToTriplet": "sharpen.adapter.LlmProxyTraceToTriplet",
    "OtelTracer": "sharpen.tracer.OtelTracer",
    "RayExecutionStrategy": "sharpen.execution.RayExecutionStrategy",
    "Runner": "sharpen.runner.Runner",
    "SQLiteStore": "sharpen.store.SQLiteStore",
    "SharedMemoryExecutionStrategy": "sharpen.execution.SharedMemoryExecutionStrategy",
    "TraceToMessages": "sharpen.adapter.TraceToMessages",
    "TraceToTriplet": "sharpen.adapter.TraceToTriplet",
    "TracerTraceToTriplet": "sharpen.adapter.TracerTraceToTriplet",
    "VERL": "sharpen.algorithm.VERL",
    "agentops": "sharpen.tracer.AgentOpsTracer",
    "baseline": "sharpen.algorithm.Baseline",
    "cs": "sharpen.execution.ClientServerExecutionStrategy",
    "dummy": "sharpen.tracer.DummyTracer",
    "memory": "sharpen.store.InMemoryLightningStore",
    "otel": "sharpen.tracer.OtelTracer",
    "ray": "sharpen.execution.RayExecutionStrategy",
    "shm": "sharpen.execution.SharedMemoryExecutionStrategy",
    "sqlite": "sharpen.store.SQLiteStore",
}


class Registry(Mapping[str, Target]):
    """Maps names to classes or import paths: the built-in ones and those that were registered."""

    def __init__(self, built_in: Mapping[str, str]) -> None:
        self._built_in = built_in
        self._registered: dict[str, Target] = {}

    def __getitem__(self, name: str) -> Target:
        return self._built_in[name] if name in self._built_in else self._registered[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._registered, **self._built_in})

    def __len__(self) -> int:
        return len({**self._registered, **self._built_in})

    @overload
    def register(self, name: str) -> Callable[[M], M]: ...

    @overload
    def register(self, name: str, class_or_path: Target) -> None: ...

    def register(self, name: str, class_or_path: Target | None = None) -> Callable[[M], M] | None:
        """Register a class, or the import path of one, under a name; also as `@register("Name")`."""
        if not isinstance(name, str) or not name:
            raise ComponentError(f'{shown(name)} is not a name: write register("Name", cls) or @register("Name")')
        if class_or_path is None:
            return self._decorator(name)
        self._add(name, class_or_path)
        return None

    def _decorator(self, name: str) -> Callable[[M], M]:
        def add(made: M) -> M:
            self._add(name, made)
            return made

        return add

    def _add(self, name: str, target: Target) -> None:
        if not callable(target) and not (isinstance(target, str) and "." in target):
            raise ComponentError(f"{name}={shown(target)} is neither a class nor an import path: 'pkg.module.Class'")
        if name in self and not _is_same(self[name], target):
            kind = "a built-in name" if name in self._built_in else "already registered"
            raise ComponentError(
                f"{name!r} is {kind} for {_path(self[name])}: register {_path(target)} under another name"
            )
        if name not in self._built_in:
            self._registered[name] = target


def _path(target: Target) -> str:
    return target if isinstance(target, str) else f"{target.__module__}.{getattr(target, '__qualname__', target)}"


def _loaded(target: Target) -> Target:
    """Return the class at a path if its module is imported already; otherwise the path."""
    if not isinstance(target, str):
        return target
    module, _, attribute = target.rpartition(".")
    found: Target = getattr(sys.modules.get(module), attribute, target)
    return found


def _is_same(old: Target, new: Target) -> bool:
    old, new = _loaded(old), _loaded(new)
    # A notebook cell or a reloaded module defines its class again: the same place in the code is the same thing.
    # Lambdas and classes inside functions (`<lambda>`, `<locals>`) share their place with others.
    return old is new or (_path(old) == _path(new) and "<" not in _path(new))


DEFAULT_REGISTRY = Registry(BUILT_IN)
register = DEFAULT_REGISTRY.register


def classes_in_main() -> dict[str, Maker]:
    """Return the classes of the running script, by name."""
    names = vars(sys.modules["__main__"])
    return {name: value for name, value in names.items() if isinstance(value, type)}


def named(things: Iterable[T]) -> dict[str, T]:
    """Return each thing under its class name in lower case, numbered if repeated: `checkpoint`, `checkpoint1`."""
    names: dict[str, T] = {}
    for thing in things:
        base = name = type(thing).__name__.lower()
        number = 0
        while name in names:
            number += 1
            name = f"{base}{number}"
        names[name] = thing
    return names
