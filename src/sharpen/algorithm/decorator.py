"""Functions as algorithms, and methods that are handed the store or the gateway."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..errors import ConfigError
from ..store import LightningStore
from ..types import Dataset
from .base import Algorithm, Gateway

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound=Algorithm[Any])
INJECTED = ("store", "train_dataset", "val_dataset", "llm_proxy", "adapter", "initial_resources", "report_iteration")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def algo(function: Callable[..., Any]) -> "FunctionalAlgorithm":
    """Turn a function into an algorithm.

    Its parameters are passed by name: any of `store`, `train_dataset`, `val_dataset`, `llm_proxy`, `adapter`,
    `initial_resources`, `report_iteration`.
    """
    return FunctionalAlgorithm(function)


class FunctionalAlgorithm(Algorithm[Any]):
    """A function, sync or async, as an algorithm. Calling it calls the function."""

    def __init__(self, algorithm_func: Callable[..., Any]) -> None:
        self._wanted = _wanted_parts(algorithm_func)
        self._algorithm_func = algorithm_func
        functools.update_wrapper(self, algorithm_func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._algorithm_func(*args, **kwargs)

    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._algorithm_func)

    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None | Awaitable[None]:
        given = {"train_dataset": train_dataset, "val_dataset": val_dataset}
        parts = {name: given[name] if name in given else self._part(name) for name in self._wanted}
        result: None | Awaitable[None] = self._algorithm_func(**parts)
        return result

    def _part(self, name: str) -> Any:
        return self.report_iteration if name == "report_iteration" else getattr(self, f"get_{name}")()


def _wanted_parts(function: Callable[..., Any]) -> list[str]:
    """The parameters to fill; one that nobody could fill is refused here and not in the middle of a run."""
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"@algo turns a function into an algorithm, but got {function!r}")
    wanted = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in INJECTED and parameter.kind in _BY_NAME:
            wanted.append(name)
        elif parameter.default is parameter.empty and parameter.kind in (*_BY_NAME, parameter.POSITIONAL_ONLY):
            problem = "is positional-only" if name in INJECTED else "has no default and is unknown"
            raise ConfigError(
                f"@algo: the parameter {name!r} of {function.__name__} {problem}, so it cannot be filled in; "
                f"the parameters passed by name are {', '.join(INJECTED)}"
            )
    return wanted


def with_store(
    method: Callable[Concatenate[A, LightningStore, P], Awaitable[R]],
) -> Callable[Concatenate[A, P], Awaitable[R]]:
    """Decorate an async method of an algorithm so that it gets the store as its first argument."""

    @functools.wraps(method)
    async def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await method(self, self.get_store(), *args, **kwargs)

    return call


def with_llm_proxy(
    required: bool = False, auto_start: bool = True
) -> Callable[[Callable[Concatenate[A, Gateway | None, P], Awaitable[R]]], Callable[Concatenate[A, P], Awaitable[R]]]:
    """Decorate an async method of an algorithm so that it gets the gateway as its first argument.

    Args:
        required: Whether a missing gateway is a `ConfigError`. Otherwise the method gets None.
        auto_start: Whether to start the gateway for the duration of the call if it is not running.
    """

    def decorate(
        method: Callable[Concatenate[A, Gateway | None, P], Awaitable[R]],
    ) -> Callable[Concatenate[A, P], Awaitable[R]]:
        @functools.wraps(method)
        async def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
            proxy = self.get_llm_proxy()
            if proxy is None and required:
                name = f"{type(self).__name__}.{method.__name__}"
                raise ConfigError(f"{name}() needs a gateway: pass llm_proxy= to the Trainer")
            if proxy is None or not auto_start or proxy.is_running():
                return await method(self, proxy, *args, **kwargs)
            await proxy.start()
            try:
                return await method(self, proxy, *args, **kwargs)
            finally:
                await proxy.stop()

        return call

    return decorate
