"""Conversations of agents with models as a text that another model can read.

A long text loses its middle, and says how much of it. Nothing here depends on time or ids: the same conversations are
always shown in the same words.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NO_CONVERSATION = "(no conversation was recorded)"
_LEFT_OUT = "\n[... {count:,} characters left out ...]\n"


def clip(text: str, most: int) -> str:
    """At most so many characters: a longer text loses its middle, and says so."""
    if len(text) <= most:
        return text
    # The note is at its longest when all is left out, so the bound holds whatever the count.
    kept = most - len(_LEFT_OUT.format(count=len(text)))
    if kept <= 0:
        return text[:most]
    start = (kept + 1) // 2
    return text[:start] + _LEFT_OUT.format(count=len(text) - kept) + text[len(text) - (kept - start) :]


def conversations_text(found: Sequence[Mapping[str, Any]], *, most_of_message: int) -> str:
    """One for each call of the model that no later call repeats; a plain list of messages is one conversation."""
    given = [{"messages": found}] if found and "role" in found[0] else found
    talks: list[list[str]] = []
    for each in given:
        lines = [*_tools(each.get("tools")), *map(_message, each.get("messages") or [])]
        talks = [talk for talk in talks if talk != lines[: len(talk)]] + [lines]
    texts = ["\n".join(clip(line, most_of_message) for line in talk) for talk in talks]
    if len(texts) < 2:
        return texts[0] if texts and texts[0] else NO_CONVERSATION
    return "\n".join(f"--- Conversation {number} ---\n{text}" for number, text in enumerate(texts, start=1))


def _tools(tools: Iterable[Mapping[str, Any]] | None) -> list[str]:
    names = [str((tool.get("function") or tool).get("name") or tool.get("type")) for tool in tools or ()]
    return [f"(the model can call: {', '.join(names)})"] if names else []


def _message(message: Mapping[str, Any]) -> str:
    said = [_content(message.get("content")), *map(_call, message.get("tool_calls") or ())]
    if message.get("refusal"):
        said.append(f"(refuses: {message['refusal']})")
    text = "\n".join(filter(None, said))
    if not text and message.get("reasoning_content"):
        text = f"(thinks, and says nothing: {message['reasoning_content']})"
    return f"[{message.get('role', 'unknown')}] {text or '(nothing)'}"


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        return json.dumps(content, ensure_ascii=False, default=str)
    return "\n".join(_part(part) for part in content)


def _part(part: Any) -> str:
    """A text as it is; of a picture or a sound only that it is there, since its bytes say nothing to a reader."""
    if not isinstance(part, Mapping):
        return str(part)
    text = part.get("text") or part.get("refusal")
    return str(text) if text else f"({part.get('type', 'something that is no text')})"


def _call(call: Mapping[str, Any]) -> str:
    called = call.get("function") or call.get("custom") or call
    arguments = called.get("arguments", called.get("input", ""))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return f"-> calls {called.get('name', 'a tool')}({text})"
