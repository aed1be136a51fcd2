"""What an agent returned, as spans."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

import msgspec

from ..emitter import emit_reward
from ..errors import AgentResultError
from ..types import AttemptedRollout, Span, SpanCoreFields

_ALLOWED = "nothing, a number (the final reward), or a list of Span, SpanCoreFields or OpenTelemetry spans"


def spans_of(result: Any, rollout: AttemptedRollout, trace_id: str | None) -> list[Span]:
    """The spans that a result stands for; anything else than the known forms is an error that names its type."""
    if result is None:
        return []
    if isinstance(result, numbers.Real):
        return [_span(_reward(result), rollout, trace_id)]
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        return [_span(item, rollout, trace_id) for item in result]
    raise AgentResultError(f"the agent returned a {_name(result)}: return {_ALLOWED}")


def _reward(value: numbers.Real) -> SpanCoreFields:
    number = float(value)
    if not math.isfinite(number):
        raise AgentResultError(f"the agent returned {number} as its reward: a reward is a finite number")
    return emit_reward(number, propagate=False)


def _span(item: Any, rollout: AttemptedRollout, trace_id: str | None) -> Span:
    rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
    if isinstance(item, SpanCoreFields):
        made = Span.from_core_fields(item, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=0)
        span = made if trace_id is None else msgspec.structs.replace(made, trace_id=trace_id)
    elif isinstance(item, Span):
        span = msgspec.structs.replace(item, rollout_id=rollout_id, attempt_id=attempt_id)
    elif hasattr(item, "get_span_context"):
        span = Span.from_opentelemetry(item, rollout_id, attempt_id, 0)
    else:
        raise AgentResultError(f"the agent returned a list with a {_name(item)}: return {_ALLOWED}")
    return _written(span)


def _written(span: Span) -> Span:
    try:
        msgspec.json.encode(span)
    except TypeError as error:
        raise AgentResultError(f"the agent returned the span {span.name!r}, which is no JSON: {error}") from None
    return span


def _name(thing: Any) -> str:
    return type(thing).__name__
