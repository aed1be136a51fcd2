"""Rollouts as a text that a critic can read: what was said, what was called, what it was worth.

The text keeps within a bound, however long the conversations are. What is cut is cut from the middle, and the text
says how much.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_EACH = 6_000
MOST_IN_ALL = 24_000
_MOST_OF_ERROR = 600
_LEFT_OUT = "\n[... {count:,} characters left out ...]\n"


def show_rollouts(
    results: Sequence[Mapping[str, Any]], *, most_each: int = MOST_EACH, most_in_all: int = MOST_IN_ALL
) -> str:
    """The rollouts, the worst first. A long one takes the room that the short ones leave."""
    ordered = sorted(results, key=_worth)
    heads = [_head(result, number, len(ordered)) for number, result in enumerate(ordered, start=1)]
    talks = [_conversations(result.get("messages") or [], most_each // 2) for result in ordered]
    room = most_in_all - sum(len(head) + len("\n\n\n") for head in heads)
    shares = _shares([len(talk) for talk in talks], most_each, max(room, 0))
    shown = [f"{head}\n{clip(talk, share)}" for head, talk, share in zip(heads, talks, shares, strict=True)]
    return clip("\n\n".join(shown), most_in_all)


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


def _worth(result: Mapping[str, Any]) -> float:
    reward = result.get("final_reward")
    return -math.inf if reward is None or math.isnan(reward) else float(reward)


def _shares(lengths: Sequence[int], most_each: int, room: int) -> list[int]:
    """What each needs, up to an equal share of what the shorter ones leave."""
    shares = [0] * len(lengths)
    for place, index in enumerate(sorted(range(len(lengths)), key=lambda index: lengths[index])):
        shares[index] = min(lengths[index], most_each, room // (len(lengths) - place))
        room -= shares[index]
    return shares


def _head(result: Mapping[str, Any], number: int, count: int) -> str:
    reward = result.get("final_reward")
    worth = "no reward" if reward is None else f"reward {float(reward):.4g}"
    line = f"=== Run {number} of {count}: {worth}, {result.get('status', 'unknown')} ==="
    error = result.get("error")
    return f"{line}\nError: {clip(str(error), _MOST_OF_ERROR)}" if error else line


# -- conversations -----------------------------------------------------------------------------------


def _conversations(found: Sequence[Mapping[str, Any]], most_of_message: int) -> str:
    """One for each call of the model that no later call repeats; a plain list of messages is one conversation."""
    given = [{"messages": found}] if found and "role" in found[0] else found
    talks: list[list[str]] = []
    for each in given:
        lines = [*_tools(each.get("tools")), *map(_message, each.get("messages") or [])]
        talks = [talk for talk in talks if talk != lines[: len(talk)]] + [lines]
    texts = ["\n".join(clip(line, most_of_message) for line in talk) for talk in talks]
    if len(texts) < 2:
        return texts[0] if texts and texts[0] else "(no conversation was recorded)"
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
