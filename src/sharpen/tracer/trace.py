"""The trace of one attempt: it collects the attempt's spans while it runs, and decides what may stand in them.

The current trace is a `contextvars` value, so that a hundred attempts in one process never mix. A span belongs to the
trace that was current when it started. A trace that has ended takes nothing more: an agent that was left behind (its
time was over, nobody waits for it) stops costing anything.

A span that a store refuses would cost the attempt it belongs to, so a value is what JSON holds, in text that UTF-8
holds. Content is the words of prompts, responses and tools; names, models, token counts, times and statuses are not.
"""

import os
import re
from collections.abc import Mapping, Sequence, Set as AbstractSet
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from traceback import format_exception, format_tb
from typing import Any, Protocol

from msgspec.structs import replace

from ..errors import text_of
from ..secrets import hide_known
from ..types import Attributes, Event, OtelResource, Span, SpanCoreFields


class SpanSink(Protocol):
    """Receives spans the moment they end. `put` may be called from any thread and must return at once."""

    def put(self, span: Span) -> None: ...


@dataclass(eq=False, slots=True)
class Trace:
    """One attempt as it is recorded."""

    rollout_id: str = ""
    attempt_id: str = ""
    sink: SpanSink | None = None
    capture_content: bool = True
    # Whose spans belong in it, apart from those that are emitted.
    sources: frozenset[str] = frozenset()
    resource: OtelResource = field(default_factory=OtelResource)
    # The trace around this one.
    outer: "Trace | None" = None
    trace_id: str = field(default_factory=lambda: os.urandom(16).hex())
    spans: list[Span] = field(default_factory=list)
    # Spans of OpenTelemetry that have started and not ended.
    open_spans: set[int] = field(default_factory=set)
    is_open: bool = True

    def record(self, span: Span) -> Span:
        """Keep a span that has ended and pass it to the sink; return it, without content if the trace has none."""
        if not self.capture_content:
            span = _without_content(span)
        if self.is_open:
            self.spans.append(span)
            if self.sink is not None:
                self.sink.put(span)
        return span

    def record_core(
        self, core: SpanCoreFields, span_id: str, parent_id: str | None, events: Sequence[Event] = ()
    ) -> None:
        """Record a span that does not come from OpenTelemetry."""
        self.record(
            Span(
                self.rollout_id,
                self.attempt_id,
                0,
                self.trace_id,
                span_id,
                parent_id,
                core.name,
                core.status,
                core.attributes,
                list(events),
                start_time=core.start_time,
                end_time=core.end_time,
                resource=self.resource,
            )
        )


# The trace that was opened last in a context, also after it has ended, so that its spans can be read.
last_trace: ContextVar[Trace | None] = ContextVar("sharpen_trace", default=None)


def current_trace() -> Trace | None:
    """Return the trace that is being recorded in this context."""
    trace = last_trace.get()
    while trace is not None and not trace.is_open:
        trace = trace.outer
    return trace


def new_span_id() -> str:
    """Return a random id, independent of the agent's `random.seed` and without changing its random numbers."""
    return os.urandom(8).hex()


# -- values ------------------------------------------------------------------------------------------

_WHOLE = frozenset((int, bool, type(None)))


def plain_attributes(values: Mapping[str, Any] | None) -> Attributes:
    """Return a copy in which every value is plain."""
    return {plain_text(str(key)): plain(value) for key, value in values.items()} if values else {}


def plain(value: Any) -> Any:
    """Return strings, numbers, None, and lists and dicts of them; anything else is described by its type."""
    kind = type(value)
    if kind is str:
        return plain_text(value)
    if kind is float:
        return value if isfinite(value) else str(value)
    if kind in _WHOLE:
        return value
    if isinstance(value, str):
        return plain_text(str(value))
    if isinstance(value, int | float):  # an IntEnum, numpy's float64
        return int(value) if isinstance(value, int) else plain(float(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return plain_attributes(value)
    if isinstance(value, Sequence | AbstractSet):
        return [plain(item) for item in value]
    return _number_or_type(value)


def plain_text(text: str) -> str:
    """Return the text without lone surrogates, which models sometimes produce."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


def _number_or_type(value: Any) -> Any:
    """Return the number of a NumPy scalar; other objects are described by their type, as their text may be anything."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        found = item()
        return plain(found) if type(found) is not type(value) else type_name(value)
    return type_name(value)


def type_name(value: Any) -> str:
    """Return how a value that cannot be written is described."""
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def exception_attributes(exception: BaseException) -> Attributes:
    """Return an exception as attributes with OpenTelemetry's names."""
    kind = type(exception)
    is_builtin = kind.__module__ == "builtins"
    return {
        "exception.type": kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": hide_known(text_of(exception)),
        "exception.stacktrace": traceback_text(exception),
    }


def traceback_text(exception: BaseException, *, frames: int | None = None) -> str:
    """Return the stack trace of an exception, or only its last frames, as text that may be stored."""
    limit = None if frames is None else -frames
    try:
        lines = format_exception(exception, limit=limit)
    except Exception:  # noqa: BLE001 - its `__str__` fails
        lines = format_tb(exception.__traceback__, limit=limit)
    return hide_known(plain_text("".join(lines)))


# -- content -----------------------------------------------------------------------------------------

_CONTENT = re.compile(
    "|".join(
        (
            # OpenTelemetry's GenAI names
            r"gen_ai\..*messages(\..*)?",
            r"gen_ai\.system_instructions.*",
            r"gen_ai\.(prompt|completion|content|choice|event\.content)([._].*)?",
            r"gen_ai\.tool\.(call\.(arguments|result)|definitions|message|parameters|result).*",
            r"gen_ai\.(retrieval\.(documents|query\.text)|evaluation\.explanation).*",
            # OpenLLMetry and AgentOps
            r"gen_ai\.(request|response)\.(functions|tools|content|instructions|reasoning\.(content|text))(\..*)?",
            r"traceloop\.entity\.(input|output)",
            r"agentops\.\w+\.(input|output)",
            r"mcp\.(request|response)\.(argument|value).*",
            # OpenInference
            r"(input|output)\.value",
            r"llm\.(input_messages|output_messages|prompts?|completions?|prompt_template|tools|function_call)(\..*)?",
            r"llm\.invocation_parameters",
            r"message\.(contents?|function_call_arguments_json|tool_calls)(\..*)?",
            r"(tool|tool_call)\..*(parameters|arguments|result|json_schema).*",
            r"(retrieval|reranker)\..*(documents|query).*",
            r"embedding\.(text|embeddings.*)",
            # ours
            r"sharpen\.operation\.(input|output)(\..*)?",
        )
    )
)


@lru_cache(maxsize=4096)  # the same few names repeat
def is_content(key: str) -> bool:
    """Whether an attribute of this name holds text of a prompt, a response or a tool."""
    return _CONTENT.fullmatch(key) is not None


def _kept(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if not is_content(key)}


def _without_content(span: Span) -> Span:
    """Return the span without content. The attributes of a GenAI event are all content, whatever their names."""
    events = [
        replace(each, attributes={} if each.name.startswith("gen_ai.") else _kept(each.attributes))
        for each in span.events
    ]
    links = [replace(each, attributes=_kept(each.attributes or {})) for each in span.links]
    return replace(span, attributes=_kept(span.attributes), events=events, links=links)
