"""A transcript as Markdown, for an issue or a notebook. Output of agents is in code fences that it cannot close."""

from collections.abc import Iterator

from ...archive.entries import Entry, Message, ToolCall
from ...archive.lookup import why_ended
from ...archive.transcript import Transcript
from ..formats import duration, moment
from .shown_text import as_text, visible


def transcript_markdown(read: Transcript, *, run_name: str) -> str:
    """Return the transcript of one attempt."""
    return "\n".join([*_head(read, run_name), *(line for entry in read.entries for line in _entry(entry))]) + "\n"


def _head(read: Transcript, run_name: str) -> Iterator[str]:
    rollout = read.rollout
    yield f"# Rollout {_inline(rollout.rollout_id)}"
    yield ""
    facts = {
        "run": run_name,
        "status": rollout.status,
        "reward": None if rollout.reward is None else f"{rollout.reward:g}",
        "mode": rollout.mode,
        "resources": rollout.resources_id and f"{rollout.resources_id}, version {rollout.resources_version}",
        "started": moment(rollout.start_time),
        "took": None if rollout.end_time is None else duration(rollout.end_time - rollout.start_time),
        "worker": read.attempt.worker_id if read.attempt else None,
        "calls": f"{read.usage.calls} ({read.usage.input_tokens} + {read.usage.output_tokens} tokens)",
    }
    yield from (f"- {name}: {_inline(str(value))}" for name, value in facts.items() if value)
    for attempt in read.attempts:
        why = why_ended(attempt)
        yield f"- attempt {attempt.sequence_id}: {attempt.status}" + (f", {_inline(why)}" if why else "")
    yield ""
    yield "## Task"
    yield from _fence(as_text(rollout.input))


def _entry(entry: Entry) -> Iterator[str]:
    extra = f" ({_inline(entry.model)})" if entry.model else ""
    yield f"## {entry.kind}: {_inline(entry.title)}{extra}"
    yield ""
    for message in entry.messages:
        yield from _message(message)
    if entry.answer is not None:
        yield from _message(entry.answer)
    if entry.kind != "call":
        for call in entry.tool_calls:
            yield from _tool(call)
    for name, text in (("input", entry.input), ("output", entry.output), ("text", entry.text), ("error", entry.error)):
        if text:
            yield f"**{name}**"
            yield from _fence(text)
    for name, value in entry.rewards.items() or ([("reward", entry.reward)] if entry.reward is not None else []):
        yield f"**reward** {_inline(name)}: {value:g}"
        yield ""


def _message(message: Message) -> Iterator[str]:
    yield f"**{_inline(message.role)}**" + (f" ({_inline(message.name)})" if message.name else "")
    if message.thoughts:
        yield "*thoughts*"
        yield from _fence(message.thoughts)
    if message.text or not message.tool_calls:
        yield from _fence(message.text)
    for call in message.tool_calls:
        yield from _tool(call)


def _tool(call: ToolCall) -> Iterator[str]:
    yield f"**tool** {_inline(call.name)}"
    yield from _fence(call.arguments)
    if call.result is not None:
        yield "**result**"
        yield from _fence(call.result)


def _fence(text: str) -> Iterator[str]:
    """Return a fence longer than any sequence of backticks within."""
    longest, run = 0, 0
    for char in text:
        run = run + 1 if char == "`" else 0
        longest = max(longest, run)
    mark = "`" * max(longest + 1, 3)
    yield ""
    yield mark
    yield visible(text)
    yield mark
    yield ""


def _inline(text: str) -> str:
    """Return one line without markup."""
    plain = " ".join(visible(text).split())
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|!&~" else char for char in plain)
