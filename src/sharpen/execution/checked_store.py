"""A store of this process whose rollouts travel to others: a task that would arrive as something else is refused."""

from collections.abc import Awaitable, Callable
from typing import Any

from ..store import UNSET, LightningStore, LightningStoreCapabilities
from ..store.methods import Method, call_method, forward_methods
from ..store.opening import StoreAddress
from ..store.task_json import TASK, encode_equal


def _check_and_pass_on(method: Method) -> Callable[..., Awaitable[Any]]:
    brings = {"input", "metadata", "requests"} & set(method.parameters)

    async def call(self: "CheckedStore", *args: Any, **kwargs: Any) -> Any:
        if brings:
            _check(method.bind(args, kwargs))
        return await call_method(self.store, method.name, args, kwargs)

    return call


def _check(arguments: dict[str, Any]) -> None:
    for what in ("input", "metadata"):
        _check_value(arguments.get(what), what)
    for request in arguments.get("requests", ()):
        _check_value(request.input, "input")
        _check_value(request.metadata, "metadata")


def _check_value(value: Any, what: str) -> None:
    if value is not None and value is not UNSET:
        encode_equal(value, TASK if what == "input" else what)


@forward_methods(_check_and_pass_on, derived=True)
class CheckedStore(LightningStore):
    """The same store for the algorithm of a run whose runners reach it over HTTP."""

    def __init__(self, store: LightningStore) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def close(self) -> None:
        await self.store.close()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.store.capabilities

    def address(self) -> StoreAddress | None:
        return self.store.address()

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()
