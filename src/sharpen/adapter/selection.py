"""What every adapter of LLM calls shares: the tree of a trace, and the calls in it that count."""

import copy
import re
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigError
from ..types import Span
from .base import To, TraceAdapter, as_spans
from .calls import (
    LLMCall,
    Rule,
    agent_of,
    find_calls,
    is_in_reward,
    is_llm_call,
    link_conversations,
    named,
    tells_of_a_call,
)
from .drawing import draw
from .rewards import reward_of
from .tree import SpanNode, build_tree, repair_hierarchy

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class LLMCallAdapter(TraceAdapter[To]):
    """Finds the LLM calls of a trace.

    `repair_hierarchy` moves spans that lost their parent (see `tree.repair_hierarchy`). `llm_call_match` is a pattern
    for span names that replaces the usual rules. `agent_match` keeps the calls below a span whose name, agent or
    operation it matches. `exclude_llm_call_in_reward` leaves out calls below a span that carries a reward. Calls that
    failed before there was a response never count.
    """

    models: frozenset[str] | None = None
    """Where it is set, only calls of these models count: a reward after a judge's call then goes to the call before."""

    def __init__(
        self,
        repair_hierarchy: bool = True,
        llm_call_match: str | None = None,
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
    ) -> None:
        self.repair_hierarchy = repair_hierarchy
        self.llm_call_match = _checked_pattern("llm_call_match", llm_call_match)
        self.agent_match = _checked_pattern("agent_match", agent_match)
        self.exclude_llm_call_in_reward = exclude_llm_call_in_reward

    def visualize(
        self, source: "Sequence[Span] | Sequence[ReadableSpan]", filename: str | PathLike[str] | None = None
    ) -> str:
        """The tree as text; with a file name also written there, as text (`.txt`) or as a picture (`.svg`)."""
        nodes = self._tree(source)
        calls = {call.node.position for call in find_calls(nodes, self._rule())}
        return draw(nodes, calls, filename)

    def _rule(self) -> Rule:
        return is_llm_call if self.llm_call_match is None else named(self.llm_call_match)

    def _tree(self, source: "Sequence[Span] | Sequence[ReadableSpan]") -> list[SpanNode]:
        nodes = build_tree(as_spans(source))
        if self.repair_hierarchy:
            repair_hierarchy(nodes, may_adopt=self._may_adopt)
        return nodes

    def _may_adopt(self, parent: SpanNode, child: SpanNode) -> bool:
        """Calls run side by side, not inside each other; and what runs beside a scoring function is not part of it."""
        if tells_of_a_call(parent.span, self._rule()):
            return False
        return child.is_orphan or reward_of(parent.span) is None

    def _calls(self, nodes: Sequence[SpanNode]) -> list[LLMCall]:
        """The calls that count, in the order of time, each with the name of its agent."""
        kept = []
        found = find_calls(nodes, self._rule())
        link_conversations(found)
        for call in found:
            call.agent_name = agent_of(call, self.agent_match)
            is_wanted = self.agent_match is None or call.agent_name is not None
            is_wanted = is_wanted and (self.models is None or call.model in self.models)
            is_scoring = self.exclude_llm_call_in_reward and is_in_reward(call)
            if is_wanted and not is_scoring and not call.has_failed:
                kept.append(call)
        return kept


AnyAdapter = TypeVar("AnyAdapter", bound=TraceAdapter[Any])


def for_models(adapter: AnyAdapter, models: Iterable[str]) -> AnyAdapter:
    """A copy that counts only calls of these models; an adapter that does not look for calls stays as it is."""
    if not isinstance(adapter, LLMCallAdapter):
        return adapter
    found = copy.copy(adapter)
    found.models = frozenset(models)
    return found


def _checked_pattern(name: str, pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except (re.error, TypeError) as error:
        raise ConfigError(f"{name} is {pattern!r}, which is no regular expression: {error}") from None
    return pattern
