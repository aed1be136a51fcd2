"""Transcripts: one attempt of a rollout as people read it.

Everything in a transcript comes from agents and models: whoever shows it must escape it.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from ..adapter.tree import SpanNode, build_tree
from ..emitter import get_message_value
from ..emitter.reward import DEFAULT_NAME, get_rewards_from_span
from ..errors import SpansEvictedError, UnknownIdError
from ..semconv import LightningSpanAttributes
from ..store import LightningStore
from ..types import Attempt, Rollout, Span
from .calls import CallEntries
from .conversation import Message, ToolCall, Usage, as_text
from .entries import Entry, EntryKind, RewardMark, error_of, kind_of, tool_call_of
from .side_work import aside
from .tokens import TokenStrip

__all__ = [
    "Entry",
    "EntryKind",
    "Message",
    "RewardMark",
    "TokenStrip",
    "ToolCall",
    "Transcript",
    "Usage",
    "read_transcript",
    "transcript_of",
    "why_ended",
]

MAX_SPANS = 20_000
_OPERATION = LightningSpanAttributes.OPERATION_NAME.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
_OBJECT_LITERAL = LightningSpanAttributes.OBJECT_LITERAL.value
_OBJECT_JSON = LightningSpanAttributes.OBJECT_JSON.value
_OBJECT_TYPE = LightningSpanAttributes.OBJECT_TYPE.value


class Transcript(msgspec.Struct, frozen=True):
    """A rollout, all its attempts, and what happened in one of them, in the order of time."""

    rollout: Rollout
    attempts: list[Attempt]
    attempt: Attempt | None
    """The one that is shown; None where the rollout has none yet."""
    spans: list[Span]
    entries: list[Entry]
    rewards: list[RewardMark]
    errors: list[str]
    usage: Usage
    is_cut: bool = False
    """Whether the attempt has more spans than were read."""


async def read_transcript(store: LightningStore, rollout_id: str, attempt_id: str | None = None) -> Transcript:
    """The transcript of an attempt, of the latest unless one is given. Unknown ids are `UnknownIdError`."""
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise UnknownIdError(f"there is no rollout {rollout_id!r} in this store")
    attempts = list(await store.query_attempts(rollout_id))
    attempt = _chosen(rollout_id, attempts, attempt_id)
    if attempt is None:
        return transcript_of(rollout, attempts, None, [])
    try:
        page = await store.query_spans(rollout_id, attempt.attempt_id, limit=MAX_SPANS)
    except SpansEvictedError as error:
        return transcript_of(rollout, attempts, attempt, [], problems=[str(error)])
    is_cut = page.total > len(page)
    return await aside(transcript_of, rollout, attempts, attempt, list(page), is_cut=is_cut)


def _chosen(rollout_id: str, attempts: Sequence[Attempt], attempt_id: str | None) -> Attempt | None:
    if attempt_id is None:
        return attempts[-1] if attempts else None
    found = next((each for each in attempts if each.attempt_id == attempt_id), None)
    if found is None:
        known = ", ".join(each.attempt_id for each in attempts) or "none"
        raise UnknownIdError(f"rollout {rollout_id!r} has no attempt {attempt_id!r}: it has {known}")
    return found


def transcript_of(
    rollout: Rollout,
    attempts: Sequence[Attempt],
    attempt: Attempt | None,
    spans: Sequence[Span],
    *,
    problems: Sequence[str] = (),
    is_cut: bool = False,
) -> Transcript:
    """The transcript of an attempt whose spans were read already."""
    nodes = build_tree(spans)
    calls = CallEntries(nodes)
    entries = _entries(nodes, calls)
    usage = Usage()
    for entry in entries:
        usage = usage if entry.usage is None else usage.plus(entry.usage)
    reason = why_ended(attempt) if attempt is not None else None
    errors = [*filter(None, [reason]), *problems, *(entry.error for entry in entries if entry.error)]
    marks = _marks(nodes, calls)
    return Transcript(
        rollout, list(attempts), attempt, list(spans), entries, marks, list(dict.fromkeys(errors)), usage, is_cut
    )


def why_ended(attempt: Attempt) -> str | None:
    """Why an attempt did not succeed; None for one that did or that still runs."""
    if attempt.status in ("succeeded", "preparing", "running"):
        return None
    about = attempt.metadata or {}
    if about.get("error") or about.get("error_type"):
        kind, words = str(about.get("error_type") or ""), str(about.get("error") or "")
        return words if not kind or words == kind else f"{kind}: {words}".removesuffix(": ")
    if attempt.status == "timeout":
        return "it took longer than the timeout_seconds of its rollout"
    if attempt.status == "unresponsive":
        worker = attempt.worker_id or "a worker without a name"
        return f"nothing was heard of it within its unresponsive_seconds (worker {worker})"
    return "no reason was recorded: it was put back into the queue, or marked as failed by hand"


# -- entries -----------------------------------------------------------------------------------------


def _entries(nodes: Sequence[SpanNode], calls: CallEntries) -> list[Entry]:
    of_calls = calls.entries(nodes)
    made: dict[int, Entry] = {}
    for node in nodes:
        if node.position in of_calls:
            made[node.position] = of_calls[node.position]
        elif node.position not in calls.positions:
            kind = kind_of(node.span)
            if kind is not None:
                made[node.position] = _entry(node.span, kind)
    return _without_echoes([made[position] for position in sorted(made)])


def _without_echoes(entries: Sequence[Entry]) -> list[Entry]:
    """An error that passes through the spans of a framework is told once, where an agent or a call told it."""
    told = {entry.error for entry in entries if entry.kind != "error" or entry.text}
    kept: list[Entry] = []
    for entry in entries:
        if entry.kind == "error" and entry.text is None:
            if entry.error in told:
                continue
            told.add(entry.error)
        kept.append(entry)
    return kept


def _entry(span: Span, kind: EntryKind) -> Entry:
    rewards = dict(get_rewards_from_span(span))
    attributes = span.attributes
    has_io = kind in ("operation", "reward")
    return Entry(
        kind=kind,
        span_id=span.span_id,
        title=_title(span, kind),
        start=span.start_time,
        end=span.end_time,
        tool_calls=[tool_call_of(span)] if kind == "tool" else [],
        text=_text(span, kind),
        reward=next(iter(rewards.values()), None),
        rewards=rewards,
        error=error_of(span),
        input=as_text(attributes[_INPUT]) if has_io and _INPUT in attributes else None,
        output=as_text(attributes[_OUTPUT]) if has_io and _OUTPUT in attributes else None,
    )


def _title(span: Span, kind: EntryKind) -> str:
    if kind == "tool":
        return tool_call_of(span).name
    if kind == "operation":
        return str(span.attributes.get(_OPERATION) or span.name)
    if kind == "object":
        return str(span.attributes.get(_OBJECT_TYPE) or "object")
    if kind == "error":
        return str(span.attributes.get("exception.type") or span.name)
    return kind


def _text(span: Span, kind: EntryKind) -> str | None:
    if kind == "message":
        return get_message_value(span) or ""
    if kind == "object":
        return as_text(span.attributes.get(_OBJECT_LITERAL, span.attributes.get(_OBJECT_JSON)))
    if kind == "annotation":
        return "\n".join(f"{key}: {as_text(value)}" for key, value in span.attributes.items())
    if kind == "error":
        trace = span.attributes.get("exception.stacktrace")
        return str(trace) if trace else None
    return None


# -- rewards -----------------------------------------------------------------------------------------


def _marks(nodes: Sequence[SpanNode], calls: CallEntries) -> list[RewardMark]:
    turns = _Turns(calls)
    return [
        RewardMark(node.span.span_id, node.span.sequence_id, None if name == DEFAULT_NAME else name, value, turn)
        for node in nodes
        if (rewards := get_rewards_from_span(node.span))
        for turn in [turns.before(node)]
        for name, value in rewards
    ]


class _Turns:
    """The agent's calls by their numbers, in the order in which they ended."""

    def __init__(self, calls: CallEntries) -> None:
        self._own = {call.node.position: number for number, call in enumerate(calls.turns, start=1)}
        ended = [(call.node.end, number, call.node.position) for number, call in enumerate(calls.turns, start=1)]
        self._ended = sorted(ended, key=lambda turn: turn[0])

    def before(self, node: SpanNode) -> int | None:
        """The call that carries the reward, or the one that ended last before it."""
        if node.position in self._own:
            return self._own[node.position]
        count = bisect_right(self._ended, node.start, key=lambda turn: turn[0])
        earlier = (self._ended[place] for place in range(count - 1, -1, -1))
        return next((number for _, number, position in earlier if position < node.position), None)
