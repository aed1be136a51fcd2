"""Transcripts and waterfalls: one attempt of a rollout as people read it, and its spans as bars over time.

Everything in them comes from agents and models: whoever displays it must escape it.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from ..adapter.tree import SpanNode, build_tree, reward_of, roots
from ..emitter import get_message_value
from ..emitter.reward import DEFAULT_NAME, get_rewards_from_span
from ..errors import SpansEvictedError, UnknownIdError
from ..semconv import LightningSpanAttributes
from ..store import LightningStore
from ..types import Attempt, Rollout, Span
from .background import run_in_background
from .entries import OPERATION, Entry, EntryKind, RewardMark, Usage, as_text, error_of, kind_of, tool_call_of
from .llm_calls import CallEntries
from .lookup import why_ended

MAX_SPANS = 20_000
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
_OBJECT_LITERAL = LightningSpanAttributes.OBJECT_LITERAL.value
_OBJECT_JSON = LightningSpanAttributes.OBJECT_JSON.value
_OBJECT_TYPE = LightningSpanAttributes.OBJECT_TYPE.value


class Transcript(msgspec.Struct, frozen=True):
    """A rollout, all its attempts, and the entries of one of them, in order of time."""

    rollout: Rollout
    attempts: list[Attempt]
    attempt: Attempt | None
    """The one that is shown; None if the rollout has none yet."""
    spans: list[Span]
    entries: list[Entry]
    rewards: list[RewardMark]
    errors: list[str]
    usage: Usage
    is_cut: bool = False
    """Whether the attempt has more spans than were read."""


async def read_transcript(store: LightningStore, rollout_id: str, attempt_id: str | None = None) -> Transcript:
    """Return the transcript of an attempt, the latest unless one is given.

    Raises:
        UnknownIdError: There is no such rollout or attempt.
    """
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise UnknownIdError(f"there is no rollout {rollout_id!r} in this store")
    attempts = list(await store.query_attempts(rollout_id))
    attempt = _chosen_attempt(rollout_id, attempts, attempt_id)
    if attempt is None:
        return transcript_of(rollout, attempts, None, [])
    try:
        page = await store.query_spans(rollout_id, attempt.attempt_id, limit=MAX_SPANS)
    except SpansEvictedError as error:
        return transcript_of(rollout, attempts, attempt, [], problems=[str(error)])
    is_cut = page.total > len(page)
    return await run_in_background(transcript_of, rollout, attempts, attempt, list(page), is_cut=is_cut)


def _chosen_attempt(rollout_id: str, attempts: Sequence[Attempt], attempt_id: str | None) -> Attempt | None:
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
    """Return the transcript of an attempt from its spans."""
    nodes = build_tree(spans)
    calls = CallEntries(nodes)
    entries = _entries(nodes, calls)
    usage = Usage()
    for entry in entries:
        usage = usage if entry.usage is None else usage.plus(entry.usage)
    reason = why_ended(attempt) if attempt is not None else None
    errors = [*filter(None, [reason]), *problems, *(entry.error for entry in entries if entry.error)]
    rewards = _reward_marks(nodes, calls)
    return Transcript(
        rollout, list(attempts), attempt, list(spans), entries, rewards, list(dict.fromkeys(errors)), usage, is_cut
    )


# -- entries -----------------------------------------------------------------------------------------


def _entries(nodes: Sequence[SpanNode], calls: CallEntries) -> list[Entry]:
    call_entries = calls.entries(nodes)
    made: dict[int, Entry] = {}
    for node in nodes:
        if node.position in call_entries:
            made[node.position] = call_entries[node.position]
        elif node.position not in calls.positions:
            kind = kind_of(node.span)
            if kind is not None:
                made[node.position] = _entry(node.span, kind)
    return _without_repeated_errors([made[position] for position in sorted(made)])


def _without_repeated_errors(entries: Sequence[Entry]) -> list[Entry]:
    """Drop the errors of framework spans that only pass on an error which an agent or a call reported."""
    known = {entry.error for entry in entries if entry.kind != "error" or entry.text}
    kept: list[Entry] = []
    for entry in entries:
        if entry.kind == "error" and entry.text is None:
            if entry.error in known:
                continue
            known.add(entry.error)
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
        return str(span.attributes.get(OPERATION) or span.name)
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


def _reward_marks(nodes: Sequence[SpanNode], calls: CallEntries) -> list[RewardMark]:
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
        """Return the number of the call that carries the reward, or of the one that ended last before it."""
        if node.position in self._own:
            return self._own[node.position]
        count = bisect_right(self._ended, node.start, key=lambda turn: turn[0])
        earlier = (self._ended[place] for place in range(count - 1, -1, -1))
        return next((number for _, number, position in earlier if position < node.position), None)


# -- waterfall ---------------------------------------------------------------------------------------


class Bar(msgspec.Struct, frozen=True):
    """One span. `kind` is that of its entry, or "span"; `parent_id` is the bar above it, None at the top."""

    span_id: str
    parent_id: str | None
    depth: int
    name: str
    kind: str
    start: float
    end: float
    is_error: bool
    reward: float | None


class Waterfall(msgspec.Struct, frozen=True):
    """Bars, parents before children, siblings in order of time; all between `start` and `end`."""

    start: float
    end: float
    bars: list[Bar]


def waterfall(spans: Sequence[Span]) -> Waterfall:
    """Return a bar for each span.

    A span whose parent is unknown is at the top. One without times has no length, and its position follows from its
    sequence id.
    """
    nodes = build_tree(spans)
    start = min((node.start for node in nodes if math.isfinite(node.start)), default=0.0)
    end = max((node.end for node in nodes if math.isfinite(node.end)), default=start)
    bars = [_bar(node, depth, first=start, last=end) for node, depth in _depth_first(nodes)]
    return Waterfall(start, end, bars)


def _depth_first(nodes: Sequence[SpanNode]) -> Iterator[tuple[SpanNode, int]]:
    """Without recursion, since a trace may be deep."""
    waiting = [(node, 0) for node in reversed(roots(nodes))]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        below = sorted(node.children, key=lambda child: child.position, reverse=True)
        waiting.extend((child, depth + 1) for child in below)


def _bar(node: SpanNode, depth: int, *, first: float, last: float) -> Bar:
    span = node.span
    start = node.start if math.isfinite(node.start) else first
    end = node.end if math.isfinite(node.end) else start
    return Bar(
        span.span_id,
        node.parent.span.span_id if node.parent is not None else None,
        depth,
        str(span.attributes.get(OPERATION) or span.name),
        kind_of(span) or "span",
        start,
        min(max(start, end), last) if last >= start else start,
        span.status.status_code == "ERROR",
        reward_of(span),
    )
