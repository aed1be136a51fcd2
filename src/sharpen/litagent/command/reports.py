"""What the program of one rollout reports while it runs, turned into spans of its attempt at once.

POST …/reward       {"reward": 0.5}, {"reward": {"right": 1, "short": 0.2}, "primary_key": "right"},
                    {"message": "text"}, or just a number
POST …/v1/traces    spans, as an OpenTelemetry exporter sends them (OTLP over HTTP)
"""

import contextvars
import json
from typing import Any

from msgspec.structs import replace

from ...emitter import emit_message, emit_reward
from ...errors import InvalidInputError, UnknownIdError
from ...tracer.plain import event_without_content, without_content
from ...tracer.trace import Trace, current_trace
from ...types import Event, Span

JSON = "application/json"
REWARD, TRACES = "/reward", "/v1/traces"
_KEYS = ("reward", "primary_key", "message")
_WHAT = 'send {"reward": 0.5} or {"message": "text"}'


class Reports:
    """Writes reports to the trace that was open where it was made, in the context that it was made in."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._trace = current_trace()

    def take(self, path: str, body: bytes, content_type: str) -> tuple[bytes, str]:
        """The answer to a report, and its type; one that makes no sense is an InvalidInputError."""
        if path == REWARD:
            self._context.run(_write, _read(body))
            return b"", JSON  # nothing that would stand in the way of the next line of a shell script
        if path == TRACES:
            return self._take_spans(body, content_type)
        raise UnknownIdError(f"unknown path {path!r}: send to {REWARD} or {TRACES}")

    def _take_spans(self, body: bytes, content_type: str) -> tuple[bytes, str]:
        # Imported with the first program that sends spans.
        from ...store import otlp

        for span in otlp.read_spans(otlp.parse(body, content_type)):
            if self._trace is not None and span.trace_id and span.span_id:
                self._trace.record(_of_attempt(span, self._trace))
        return otlp.answer(0, "", content_type), content_type


def _read(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidInputError(f"{body[:80]!r} is not JSON: {_WHAT}") from None
    if isinstance(said, int | float):
        said = {"reward": said}
    if not isinstance(said, dict) or not {"reward", "message"} & said.keys():
        raise InvalidInputError(f"{json.dumps(said)[:80]} has neither a reward nor a message: {_WHAT}")
    for key in said:
        if key not in _KEYS:
            raise InvalidInputError(f"unknown key {key!r}: use {', '.join(_KEYS)}")
    return said


def _write(said: dict[str, Any]) -> None:
    """Both or none of them."""
    if "message" in said:
        emit_message(said["message"], propagate=False)
    if "reward" in said:
        emit_reward(said["reward"], primary_key=said.get("primary_key"))
    if "message" in said:
        emit_message(said["message"])


def _of_attempt(span: Span, trace: Trace) -> Span:
    """The span as part of this attempt, whatever it says of itself."""
    mine = replace(span, rollout_id=trace.rollout_id, attempt_id=trace.attempt_id, sequence_id=0)
    if trace.capture_content:
        return mine
    events = [
        Event(each.name, event_without_content(each.name, each.attributes), each.timestamp) for each in span.events
    ]
    return replace(mine, attributes=without_content(span.attributes), events=events)
