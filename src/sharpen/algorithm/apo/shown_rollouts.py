"""Rollouts as a text that a critic can read: what was said, what was called, what it was worth.

The text keeps within a bound, however long the conversations are. What is cut is cut from the middle, and the text
says how much.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..prompts.conversations import clip, conversations_text

MOST_EACH = 6_000
MOST_IN_ALL = 24_000
_MOST_OF_ERROR = 600


def show_rollouts(
    results: Sequence[Mapping[str, Any]], *, most_each: int = MOST_EACH, most_in_all: int = MOST_IN_ALL
) -> str:
    """The rollouts, the worst first. A long one takes the room that the short ones leave."""
    ordered = sorted(results, key=_worth)
    heads = [_head(result, number, len(ordered)) for number, result in enumerate(ordered, start=1)]
    talks = [conversations_text(result.get("messages") or [], most_of_message=most_each // 2) for result in ordered]
    room = most_in_all - sum(len(head) + len("\n\n\n") for head in heads)
    shares = _shares([len(talk) for talk in talks], most_each, max(room, 0))
    shown = [f"{head}\n{clip(talk, share)}" for head, talk, share in zip(heads, talks, shares, strict=True)]
    return clip("\n\n".join(shown), most_in_all)


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
