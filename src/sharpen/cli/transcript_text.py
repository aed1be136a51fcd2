"""A transcript as people read it in a terminal.

Whatever agents and models wrote passes `plain` and stands in a `Text`, so it can neither steer the terminal nor be
taken for markup.
"""

import re
import time
from collections.abc import Iterator, Sequence, Set as AbstractSet
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ..archive.entries import Entry, Message, ToolCall, Usage, as_text
from ..archive.lookup import why_ended
from ..archive.transcript import Transcript
from ..logging import plain
from .output import one_line
from .span_bars import draw_spans
from .token_strip import draw_tokens

if TYPE_CHECKING:
    from ..types import Attempt

STATUS_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "timeout": "red",
    "unresponsive": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "preparing": "cyan",
    "requeuing": "yellow",
    "queuing": "dim",
}
_RUNNER_FRAMES = re.compile(
    r"(Traceback \(most recent call last\):\n)"
    r"(?:  File \"[^\"\n]*/sharpen/(?:runner|litagent)/[^\n]*\n(?:    [^\n]*\n)*)+"
)
_ROLE_STYLES = {"system": "magenta", "developer": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}


def draw(transcript: Transcript, *, with_spans: bool = False, with_tokens: bool = False) -> Group:
    """Rollout, attempts, what happened, and what went wrong."""
    parts: list[RenderableType] = [*_head(transcript), *_attempts(transcript)]
    known = {call.id for entry in transcript.entries if entry.kind == "call" for call in entry.tool_calls}
    for entry in transcript.entries:
        parts += ["", *draw_entry(entry, answered=known, with_tokens=with_tokens)]
    if not transcript.entries:
        parts += ["", Text(_why_nothing(transcript), style="dim")]
    if with_spans:
        parts += ["", *draw_spans(transcript.spans)]
    if transcript.is_cut:
        parts += ["", Text("not all spans of this attempt are shown", style="yellow")]
    told = {entry.error for entry in transcript.entries}
    rest = [error for error in transcript.errors if error not in told]
    if rest:
        parts += ["", _title("errors", "bold red"), *(_indented(error, "red") for error in rest)]
    return Group(*parts)


def _why_nothing(transcript: Transcript) -> str:
    if transcript.attempt is None:
        return "no runner has claimed it yet"
    return (
        "none of its spans has readable content (use --spans to list them)" if transcript.spans else "it has no spans"
    )


# -- the rollout -------------------------------------------------------------------------------------


def _head(transcript: Transcript) -> Iterator[RenderableType]:
    rollout, usage = transcript.rollout, transcript.usage
    line = Text.assemble(("rollout ", "dim"), (plain(rollout.rollout_id), "bold"), "  ")
    line.append(rollout.status, STATUS_STYLES.get(rollout.status, ""))
    if rollout.reward is not None:
        line.append(f"  reward {rollout.reward:.6g}", "bold")
    yield line
    yield _field("task", one_line(as_text(rollout.input)))
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(rollout.start_time))
    took = "" if rollout.end_time is None else f", {_time(rollout.end_time - rollout.start_time)}"
    yield _field("started", f"{started}{took}{f', {rollout.mode}' if rollout.mode else ''}")
    if rollout.resources_id is not None:
        yield _field("resources", f"{rollout.resources_id} version {rollout.resources_version}")
    if rollout.metadata:
        yield _field("metadata", one_line(as_text(rollout.metadata)))
    if usage.calls:
        yield _field("calls", f"{usage.calls}: {_usage(usage)}")
    for mark in transcript.rewards:
        turn = "" if mark.turn is None else f" after call {mark.turn}"
        yield _field("reward", f"{mark.value:.6g}{f' {mark.name}' if mark.name else ''}{turn}")


def _attempts(transcript: Transcript) -> Iterator[RenderableType]:
    for attempt in transcript.attempts:
        is_shown = transcript.attempt is not None and attempt.attempt_id == transcript.attempt.attempt_id
        yield _attempt(attempt, is_shown=is_shown and len(transcript.attempts) > 1)
    if len(transcript.attempts) > 1:
        yield Text("           use --attempt N to show another one", style="dim")


def _attempt(attempt: "Attempt", *, is_shown: bool) -> Text:
    line = _field("attempt", f"{attempt.sequence_id} ({attempt.attempt_id}) ")
    line.append(attempt.status, STATUS_STYLES.get(attempt.status, ""))
    if attempt.worker_id:
        line.append(f" by {plain(attempt.worker_id)}")
    if attempt.end_time is not None:
        line.append(f" in {_time(attempt.end_time - attempt.start_time)}")
    reason = why_ended(attempt)
    if reason is not None:
        line.append(f": {one_line(reason)[:300]}", "red")
    if is_shown:
        line.append("  (shown)", "bold")
    return line


def _field(name: str, value: str) -> Text:
    return Text.assemble((f"{name:<11}", "dim"), plain(value))


def _usage(usage: Usage) -> str:
    cost = "" if usage.cost is None else f", ${usage.cost:.4g}"
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{cost}, {_time(usage.seconds)}"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


# -- entries -----------------------------------------------------------------------------------------


def draw_entry(
    entry: Entry,
    *,
    answered: AbstractSet[str | None] = frozenset(),
    with_tokens: bool = False,
) -> Iterator[RenderableType]:
    """Render one entry; the result of a tool that already stands with its call (`answered`) is not repeated."""
    yield _entry_title(entry)
    if entry.num_repeated:
        count = entry.num_repeated
        yield _indented(f"({count} message{'s' * (count > 1)} repeated from earlier calls)", "dim")
    for message in entry.messages:
        yield from _message(message)
    if entry.text:
        yield _indented(_shown_text(entry), "yellow" if entry.kind == "call" else "")
    for name, value in (("in ", entry.input), ("out", entry.output)):
        if value is not None:
            yield _indented(f"{name} {value}")
    if entry.answer is not None:
        yield from _message(entry.answer)
    for number, answer in enumerate(entry.further_answers, start=2):
        yield from _message(answer, f" (choice {number})")
    if entry.kind == "tool":
        yield from _tool_calls([each for each in entry.tool_calls if each.id is None or each.id not in answered])
    if entry.error is not None and not (entry.kind == "error" and entry.text):
        yield _indented(f"error: {entry.error}", "red")
    if with_tokens and entry.tokens is not None:
        yield Padding(draw_tokens(entry.tokens), (0, 0, 0, 2))


def _shown_text(entry: Entry) -> str:
    """Return the text; of a traceback only the agent's frames, without those of the runner."""
    text = (entry.text or "").rstrip()
    if entry.kind != "error":
        return text
    return _RUNNER_FRAMES.sub(r"\1", text, count=1)


def _entry_title(entry: Entry) -> Text:
    number = "" if entry.turn is None else f"{entry.turn} "
    is_named = entry.kind in ("call", "tool", "operation", "object", "error")
    line = _title(f"{entry.kind} {number}{entry.title if is_named else ''}".rstrip(), "bold")
    facts = [] if entry.agent is None else [entry.agent]
    if entry.start is not None and entry.end is not None and entry.end > entry.start:
        facts.append(_time(entry.end - entry.start))
    if entry.usage is not None and (entry.usage.input_tokens or entry.usage.output_tokens):
        facts.append(f"{entry.usage.input_tokens} → {entry.usage.output_tokens} tokens")
    if entry.kind == "call" and entry.turn is None:
        facts.append("made to compute a reward")
    line.append("".join(f"  {plain(fact)}" for fact in facts), "dim")
    if entry.reward is not None and entry.kind != "call":
        several = ", ".join(f"{name} {value:.6g}" for name, value in entry.rewards.items())
        line.append(f"  {several if len(entry.rewards) > 1 else f'{entry.reward:.6g}'}", "bold cyan")
    return line


def _title(text: str, style: str) -> Text:
    return Text.assemble(("── ", "dim"), (one_line(text), style))


def _message(message: Message, more: str = "") -> Iterator[RenderableType]:
    name = f" {message.name}" if message.name else ""
    yield _indented(f"{message.role}{name}{more}", _ROLE_STYLES.get(message.role, "bold"))
    if message.thoughts:
        yield _indented(message.thoughts, "dim italic", 4)
    if message.text:
        yield _indented(message.text, "", 4)
    yield from _tool_calls(message.tool_calls)


def _tool_calls(calls: Sequence[ToolCall]) -> Iterator[RenderableType]:
    for call in calls:
        yield _indented(f"→ {call.name} {call.arguments}".rstrip(), "yellow", 4)
        if call.result is not None:
            yield _indented(f"← {call.result}", "", 6)


def _indented(text: str, style: str = "", by: int = 2) -> Padding:
    return Padding(Text(plain(text), style=style), (0, 0, 0, by), expand=False)
