"""What calls return (pages, triplets, an agent's raw result), and the data sets that callers pass."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload, runtime_checkable

import msgspec

from .rollouts import Rollout
from .spans import Span, SpanCoreFields

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from typing_extensions import TypeVar as TypeVarWithDefault

    RolloutRawResult = None | float | int | list[ReadableSpan] | list[Span] | list[SpanCoreFields]
    TaskT = TypeVarWithDefault("TaskT", default=Any)
else:
    RolloutRawResult = None | float | int | list[Any] | list[Span] | list[SpanCoreFields]
    TaskT = TypeVar("TaskT")
    """The kind of task that a generic class works on; type checkers take `Any` where none is named."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Triplet(msgspec.Struct, frozen=True):
    """Prompt, response and reward of one LLM call, as an algorithm consumes it."""

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = {}


class PaginatedResult(msgspec.Struct, Generic[T], frozen=True):
    """One page of a query. It is itself a sequence of its items; `total` counts all that match."""

    items: list[T]
    limit: int
    offset: int
    total: int

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.items[index]

    def __contains__(self, item: object) -> bool:
        return item in self.items

    def index(self, item: T) -> int:
        return self.items.index(item)

    def count(self, item: T) -> int:
        return self.items.count(item)


Sequence.register(PaginatedResult)


class FinishedRollouts(msgspec.Struct, frozen=True):
    """Rollouts in the order in which they finished, and the cursor to continue from."""

    items: list[Rollout]
    cursor: int


class RolloutPage(msgspec.Struct, frozen=True):
    """One page of a search for rollouts.

    A search has a limit of effort: if it is reached before the page is full, `is_complete` is False and
    `next_cursor` continues from there. `next_cursor` is None at the end.
    `total` counts all that match where that is cheap; it is a lower bound if `is_total_exact` is False.
    """

    items: list[Rollout]
    next_cursor: str | None = None
    total: int | None = None
    is_total_exact: bool = False
    examined: int = 0
    """About how many rollouts were looked at."""
    is_complete: bool = True


class StoredSpans(list["Span | None"]):
    """The spans that were stored, with None for each that was there already.

    `unwanted` names attempts that are no longer wanted, so that their agents can be stopped.
    """

    def __init__(self, spans: Iterable[Span | None] = (), unwanted: Iterable[str] = ()) -> None:
        super().__init__(spans)
        self.unwanted = tuple(unwanted)


@runtime_checkable
class SizedDataset(Protocol[T_co]):
    """A data set with a length and an index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> T_co: ...


# Anything with a length and an index, or an iterable that is read once an epoch.
Dataset = SizedDataset[T] | Iterable[T]
