"""Rewards: numbers that say how well an attempt went.

A reward span holds one or several named dimensions: `sharpen.reward.0.name` and `.value` are the primary one, the one
that counts; further ones follow with higher numbers.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, TypeVar, overload

from ..checks import check_number, is_int
from ..errors import InvalidInputError
from ..semconv import AGL_REWARD, PRIMARY_REWARD_VALUE, LightningSpanAttributes
from ..tracer.base import active_tracer, emit
from ..types import Attributes, SpanCoreFields
from .emit import AnySpan, flatten

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=AnySpan)

DEFAULT_NAME = "primary"
_PREFIX = LightningSpanAttributes.REWARD.value


def emit_reward(
    reward: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> SpanCoreFields:
    """Record a reward: a number, or several named ones, of which `primary_key` names the one that counts."""
    found = _attributes(reward, primary_key)
    if attributes:
        found = {**flatten(attributes), **found}
    return emit(AGL_REWARD, found, propagate=propagate)


def _attributes(reward: Any, primary_key: str | None) -> Attributes:
    found: Attributes = {}
    for number, (name, value) in enumerate(_dimensions(reward, primary_key)):
        found[f"{_PREFIX}.{number}.name"] = name
        found[f"{_PREFIX}.{number}.value"] = value
    return found


def _dimensions(reward: Any, primary_key: str | None) -> list[tuple[str, float]]:
    """Return names and values, the primary one first."""
    if not isinstance(reward, Mapping):
        return [(primary_key or DEFAULT_NAME, _number(reward, "the reward"))]
    values = {_name(name): _number(value, f"the reward {name!r}") for name, value in reward.items()}
    if not values:
        raise InvalidInputError("the reward is an empty dict: pass at least one dimension")
    if primary_key is None and len(values) > 1:
        raise InvalidInputError(f"the reward has {len(values)} dimensions ({_listed(values)}): pass primary_key")
    primary = next(iter(values)) if primary_key is None else primary_key
    if primary not in values:
        raise InvalidInputError(f"primary_key is {primary!r}, but the reward has only {_listed(values)}")
    return [(primary, values.pop(primary)), *values.items()]


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(map(repr, values))


def _name(name: Any) -> str:
    if isinstance(name, str) and name:
        return name
    raise InvalidInputError(f"the name of a reward dimension is {name!r}: use a non-empty str")


def _number(value: Any, what: str) -> float:
    return float(check_number(what, value, error=InvalidInputError))


@overload
def reward(function: F) -> F: ...
@overload
def reward(*, primary_key: str | None = None) -> Callable[[F], F]: ...
def reward(function: Any = None, *, primary_key: str | None = None) -> Any:
    """Record what a scoring function returns (a number, or a dict of them) as the reward, and return it unchanged.

    Model calls inside are below the reward in the trace, so that they do not count as the agent's.
    """
    if function is None:
        return lambda decorated: _decorate(decorated, primary_key)
    return _decorate(function, primary_key)


def _decorate(function: Callable[..., Any], primary_key: str | None) -> Callable[..., Any]:
    if not callable(function):
        raise InvalidInputError(f"@reward decorates a scoring function, not {type(function).__name__}")

    @wraps(function)
    def scored(*args: Any, **kwargs: Any) -> Any:
        with _scoring(primary_key) as record:
            value = function(*args, **kwargs)
            record(value)
        return value

    @wraps(function)
    async def scored_async(*args: Any, **kwargs: Any) -> Any:
        with _scoring(primary_key) as record:
            value = await function(*args, **kwargs)
            record(value)
        return value

    return scored_async if inspect.iscoroutinefunction(function) else scored


@contextmanager
def _scoring(primary_key: str | None) -> Iterator[Callable[[Any], object]]:
    tracer = active_tracer()
    if tracer is None:
        yield lambda value: emit_reward(value, primary_key=primary_key)
        return
    with tracer.operation_context(AGL_REWARD) as span:
        yield lambda value: span.set_attributes(_attributes(value, primary_key))


# -- readers -----------------------------------------------------------------------------------------


def get_reward_value(span: AnySpan) -> float | None:
    """Return the primary reward of a span; None if it has none."""
    return _read(span.attributes, 0)


class RewardDimension(NamedTuple):
    """One dimension of a reward."""

    name: str
    value: float


def get_rewards_from_span(span: AnySpan) -> list[RewardDimension]:
    """Return all dimensions of a span's reward, the primary one first; none for other spans."""
    rewards: list[RewardDimension] = []
    while (value := _read(span.attributes, len(rewards))) is not None:
        name = span.attributes.get(f"{_PREFIX}.{len(rewards)}.name", DEFAULT_NAME)
        rewards.append(RewardDimension(str(name), value))
    return rewards


def is_reward_span(span: AnySpan) -> bool:
    """Whether a span carries a reward."""
    return get_reward_value(span) is not None


def find_reward_spans(spans: Sequence[S]) -> list[S]:
    """Return the spans that carry a reward, in order."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Sequence[AnySpan]) -> float | None:
    """Return the last reward; None if there is none."""
    return next((value for span in reversed(spans) if (value := get_reward_value(span)) is not None), None)


def _read(attributes: Attributes, number: int) -> float | None:
    value = attributes.get(PRIMARY_REWARD_VALUE if number == 0 else f"{_PREFIX}.{number}.value")
    return float(value) if is_int(value) or isinstance(value, float) else None
