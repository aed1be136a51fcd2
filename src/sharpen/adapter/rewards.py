"""Rewards in a trace: which span carries one, and which LLM call it belongs to."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from enum import StrEnum

from ..checks import is_number
from ..semconv import PRIMARY_REWARD_VALUE
from ..types import Span
from .tree import SpanNode


class RewardMatchPolicy(StrEnum):
    """How a reward finds its LLM call.

    A reward belongs to the call that ended last before it, and to no other; a call keeps the first reward that comes
    to it. So of several calls without a reward in between only the last one is rewarded, and a reward that comes
    before a call has ended is not for that call. Attempts are kept apart.
    """

    FIRST_OCCURRENCE = "first_occurrence"
    """Among all calls."""
    FIRST_SIBLING = "first_sibling"
    """Among the calls that have the same parent as the reward."""


def reward_of(span: Span) -> float | None:
    """The primary reward that the span carries."""
    value = span.attributes.get(PRIMARY_REWARD_VALUE)
    return float(value) if is_number(value) else None


def match_rewards(calls: Sequence[SpanNode], nodes: Iterable[SpanNode], policy: RewardMatchPolicy) -> dict[int, float]:
    """The reward of each call that has one, by the position of the call. A call that carries its own keeps that."""
    rewards = {node.position: value for node in nodes if (value := reward_of(node.span)) is not None}
    own = {call.position: rewards[call.position] for call in calls if call.position in rewards}
    given = dict(own)
    by_group: dict[Hashable, list[SpanNode]] = {}
    for call in sorted(calls, key=lambda call: (call.end, call.position)):
        by_group.setdefault(_group(call, policy), []).append(call)
    for node in nodes:
        if node.position in rewards and node.position not in own:
            found = _last_before(node, by_group.get(_group(node, policy), []))
            if found is not None:
                given.setdefault(found.position, rewards[node.position])
    return given


def _group(node: SpanNode, policy: RewardMatchPolicy) -> Hashable:
    parent = node.parent.position if node.parent is not None and policy == RewardMatchPolicy.FIRST_SIBLING else None
    return node.attempt, parent


def _last_before(reward: SpanNode, calls: Sequence[SpanNode]) -> SpanNode | None:
    """Of calls sorted by their end, the last that had ended when the reward came."""
    count = bisect_right(calls, reward.start, key=lambda call: call.end)
    # Where times are equal or missing, the order decides.
    return next((call for call in reversed(calls[:count]) if call.position < reward.position), None)
