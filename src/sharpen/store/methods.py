"""The methods of the store as one table, from which the server, the client and the wrappers of stores are made.

Each row says how a method is served over HTTP and what kind of work it is; parameters and types are read from
`LightningStore` itself. A `derived` method is defined by others in the contract, so only the server knows it.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, reduce
from operator import or_
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from ..errors import InvalidInputError
from ..types import (
    Attempt,
    AttemptedRollout,
    FinishedRollouts,
    PaginatedResult,
    Rollout,
    RolloutPage,
    Span,
    StoredSpans,
)
from .base import LightningStore, LightningStoreCapabilities
from .opening import StoreAddress, address_of

Kind = Literal["read", "write", "wait", "derived"]
Verb = Literal["GET", "POST", "PATCH"]


class Method(msgspec.Struct, frozen=True, dict=True):
    """One method of the store, and where it stands in the HTTP interface (below `/v1`)."""

    name: str
    kind: Kind
    verb: Verb
    path: str

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        parameters = dict(inspect.signature(getattr(LightningStore, self.name)).parameters)
        del parameters["self"]
        return parameters

    @cached_property
    def required(self) -> frozenset[str]:
        empty = inspect.Parameter.empty
        return frozenset(name for name, parameter in self.parameters.items() if parameter.default is empty)

    @property
    def summary(self) -> str:
        return (getattr(LightningStore, self.name).__doc__ or "").split("\n", 1)[0].rstrip(".")

    @cached_property
    def hints(self) -> dict[str, Any]:
        return get_type_hints(getattr(LightningStore, self.name), include_extras=True)

    @cached_property
    def path_parameters(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @cached_property
    def request_type(self) -> type[msgspec.Struct]:
        """The arguments that are sent in the body or the query."""
        fields: list[Any] = []
        for name, parameter in self.parameters.items():
            if name in self.path_parameters:
                continue
            hint = _as_lists(self.hints[name])
            if self.verb == "GET":
                hint = _without_none(hint)
            if parameter.default is inspect.Parameter.empty:
                fields.append((name, hint))
            else:
                fields.append((name, hint | UnsetType if hint is not Any else hint, UNSET))
        title = "".join(word.capitalize() for word in self.name.split("_")) + "Arguments"
        return msgspec.defstruct(title, fields, forbid_unknown_fields=True, kw_only=True)

    @cached_property
    def answer_type(self) -> Any:
        return _WIRE_ANSWERS.get(self.name, self.hints["return"])

    @cached_property
    def list_parameters(self) -> frozenset[str]:
        return frozenset(name for name, hint in self.hints.items() if _is_list(_as_lists(hint)))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name, with the errors of an ordinary call."""
        if not args and self.required <= kwargs.keys() <= self.parameters.keys():
            return kwargs
        return dict(inspect.Signature(list(self.parameters.values())).bind(*args, **kwargs).arguments)


def _as_lists(hint: Any) -> Any:
    """`Sequence[X]` as `list[X]`, which is what arrives."""
    if get_origin(hint) is Sequence:
        return list[get_args(hint)]  # type: ignore[misc]
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, (_as_lists(part) for part in get_args(hint)))
    return hint


def _without_none(hint: Any) -> Any:
    """A query has no null: leaving a parameter out says the same."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    return reduce(or_, parts) if get_origin(hint) in (Union, UnionType) else hint


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is list or any(get_origin(part) is list for part in get_args(hint))


class SpanReceipt(msgspec.Struct, frozen=True):
    """What the server says about stored spans: the number each got, null for one that was there already."""

    stored: list[int | None]
    unwanted: list[str] = []

    @classmethod
    def of(cls, spans: StoredSpans) -> "SpanReceipt":
        return cls([None if span is None else span.sequence_id for span in spans], list(spans.unwanted))

    def restore(self, sent: Sequence[Span]) -> StoredSpans:
        """The answer of `add_many_spans`, made from the spans that were sent."""
        spans = (
            None if number is None else msgspec.structs.replace(span, sequence_id=number)
            for span, number in zip(sent, self.stored, strict=True)
        )
        return StoredSpans(spans, self.unwanted)


class BatchEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One write of a batch: what would be a request of its own."""

    verb: Literal["POST", "PATCH"]
    path: str
    body: msgspec.Raw = msgspec.Raw(b"{}")


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Writes of one client in one request. Each succeeds or fails by itself."""

    requests: list[BatchEntry]


class BatchAnswer(msgspec.Struct, frozen=True):
    """Status and body that the write would have got as a request of its own."""

    status: int
    body: msgspec.Raw


class MaybeAttempted(Rollout, frozen=True, kw_only=True):
    """A rollout on the wire, with its latest attempt where it has one."""

    attempt: Attempt | None = None

    def restore(self) -> Rollout:
        fields = {name: getattr(self, name) for name in Rollout.__struct_fields__}
        return Rollout(**fields) if self.attempt is None else AttemptedRollout(**fields, attempt=self.attempt)


def change_rollouts(answer: Any, change: Callable[[Rollout], Rollout]) -> Any:
    """Return the answer of a method with every rollout in it changed."""
    if isinstance(answer, Rollout):
        return change(answer)
    if isinstance(answer, list) and answer and isinstance(answer[0], Rollout):
        return [change(each) for each in answer]
    if isinstance(answer, PaginatedResult | FinishedRollouts | RolloutPage):
        return msgspec.structs.replace(answer, items=change_rollouts(answer.items, change))
    return answer


_WIRE_ANSWERS: dict[str, Any] = {
    "add_many_spans": SpanReceipt,
    "get_rollout_by_id": MaybeAttempted | None,
    "update_rollout": MaybeAttempted,
    "cancel_rollouts": list[MaybeAttempted],
    "query_rollouts": PaginatedResult[MaybeAttempted],
    "wait_for_rollouts": list[MaybeAttempted],
}

_TABLE: list[tuple[str, Kind, Verb, str]] = [
    ("enqueue_rollout", "derived", "POST", "/rollouts"),
    ("enqueue_many_rollouts", "write", "POST", "/rollouts:batch"),
    ("start_rollout", "write", "POST", "/rollouts:start"),
    ("cancel_rollouts", "write", "POST", "/rollouts:cancel"),
    ("wait_for_rollouts", "wait", "POST", "/rollouts:wait"),
    ("finished_rollouts", "wait", "GET", "/rollouts:finished"),
    ("query_rollouts", "read", "GET", "/rollouts"),
    ("search_rollouts", "read", "GET", "/rollouts:search"),
    ("get_rollout_by_id", "read", "GET", "/rollouts/{rollout_id}"),
    ("update_rollout", "write", "PATCH", "/rollouts/{rollout_id}"),
    ("dequeue_rollout", "derived", "POST", "/queue:claim"),
    ("dequeue_many_rollouts", "wait", "POST", "/queue:claim-batch"),
    ("start_attempt", "write", "POST", "/rollouts/{rollout_id}/attempts"),
    ("query_attempts", "read", "GET", "/rollouts/{rollout_id}/attempts"),
    ("get_latest_attempt", "read", "GET", "/rollouts/{rollout_id}/attempts:latest"),
    ("update_attempt", "write", "PATCH", "/rollouts/{rollout_id}/attempts/{attempt_id}"),
    ("complete_attempt", "write", "POST", "/rollouts/{rollout_id}/attempts/{attempt_id}/completion"),
    ("get_next_span_sequence_id", "derived", "POST", "/rollouts/{rollout_id}/attempts/{attempt_id}/sequence"),
    ("get_many_span_sequence_ids", "write", "POST", "/spans:sequence"),
    ("add_span", "derived", "POST", "/spans"),
    ("add_many_spans", "write", "POST", "/spans:batch"),
    ("query_spans", "read", "GET", "/rollouts/{rollout_id}/spans"),
    ("add_resources", "write", "POST", "/resources"),
    ("update_resources", "write", "POST", "/resources/{resources_id}/versions"),
    ("get_latest_resources", "read", "GET", "/resources:latest"),
    ("get_resources_by_id", "read", "GET", "/resources/{resources_id}"),
    ("query_resources", "read", "GET", "/resources"),
    ("update_worker", "write", "POST", "/workers/{worker_id}/heartbeat"),
    ("get_worker_by_id", "read", "GET", "/workers/{worker_id}"),
    ("query_workers", "read", "GET", "/workers"),
    ("statistics", "read", "GET", "/statistics"),
    ("prune", "write", "POST", "/rollouts:prune"),
]

METHODS: dict[str, Method] = {row[0]: Method(*row) for row in _TABLE}


def call_method(store: LightningStore, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a store that may be the user's own: a heartbeat of 0.1 takes no `attempt_ids`."""
    function = getattr(store, name)
    if "attempt_ids" in kwargs:
        taken = inspect.signature(function).parameters.values()
        if not any(each.name == "attempt_ids" or each.kind is each.VAR_KEYWORD for each in taken):
            kwargs = {key: value for key, value in kwargs.items() if key != "attempt_ids"}
    return function(*args, **kwargs)


# Names of parameters that Agent Lightning's users know.
_OTHER_NAMES = {"enqueue_many_rollouts": {"rollouts": "requests"}}


def _with_other_names(function: Any, names: dict[str, str]) -> Any:
    if not names:
        return function

    async def call(*args: Any, **kwargs: Any) -> Any:
        given = {names.get(key, key): value for key, value in kwargs.items()}
        if len(given) < len(kwargs):
            raise InvalidInputError(f"{', '.join(kwargs)} name the same argument twice: pass only {', '.join(given)}")
        return await function(*args, **given)

    return call


def forward_methods(make: Callable[[Method], Any], *, derived: bool = False) -> Callable[[type], type]:
    """Return a class decorator that adds every method of the store that the class does not define itself.

    Args:
        make: Returns the function for a method.
        derived: Whether to add the methods that `LightningStore` derives from others, too.
    """

    def decorate(cls: type) -> type:
        for method in METHODS.values():
            if (derived or method.kind != "derived") and method.name not in vars(cls):
                function = _with_other_names(make(method), _OTHER_NAMES.get(method.name, {}))
                contract = getattr(LightningStore, method.name)
                function.__name__, function.__doc__ = contract.__name__, contract.__doc__
                function.__qualname__, function.__signature__ = (
                    f"{cls.__name__}.{method.name}",
                    inspect.signature(contract),
                )
                setattr(cls, method.name, function)
        return cls

    return decorate


def _forward(method: Method) -> Callable[..., Awaitable[Any]]:
    async def call(self: "StoreWrapper", *args: Any, **kwargs: Any) -> Any:
        return await self._call(method, args, kwargs)

    return call


@forward_methods(_forward, derived=True)
class StoreWrapper(LightningStore):
    """A store that passes every method on to another one; a subclass changes `_call`, or single methods."""

    def __init__(self, store: LightningStore) -> None:
        self.store = store

    async def _call(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await call_method(self.store, method.name, args, kwargs)

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        return await self.store.add_otel_span(rollout_id, attempt_id, readable_span, sequence_id)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.store.capabilities

    def address(self) -> StoreAddress | None:
        return address_of(self.store)

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()
