"""The base classes of adapters, which turn what was recorded into what an algorithm consumes.

`LLMCallAdapter` is what the adapters of LLM calls share: the tree of a trace, and the calls in it that count.
"""

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import ConfigError
from ..types import Span
from .calls import (
    LLMCall,
    Rule,
    agent_of,
    describes_call,
    find_calls,
    is_in_reward,
    is_llm_call,
    link_conversations,
    matches_name,
)
from .tree import SpanNode, build_tree, draw, repair_hierarchy, reward_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

From = TypeVar("From")
To = TypeVar("To")


class Adapter(ABC, Generic[From, To]):
    """Turns one shape of data into another; it can be called like a function."""

    @abstractmethod
    def adapt(self, source: From, /) -> To:
        """Return the source in the other shape; the source itself is not changed."""

    def __call__(self, source: From, /) -> To:
        return self.adapt(source)


class TraceAdapter(Adapter[Sequence[Span], To]):
    """An adapter of the spans of a store."""


class OtelTraceAdapter(Adapter["Sequence[ReadableSpan]", To]):
    """An adapter of the spans of the OpenTelemetry SDK."""


class LLMCallAdapter(TraceAdapter[To]):
    """Finds the LLM calls of a trace. Calls that failed before there was a response never count.

    Args:
        repair_hierarchy: Whether to move spans that lost their parent below the span in whose time they lie.
        llm_call_match: A regular expression for span names, which replaces the usual rules for what is an LLM call.
        agent_match: A regular expression; only calls below a span whose name, agent or operation it matches count.
        exclude_llm_call_in_reward: Whether to leave out calls below a span that carries a reward.
    """

    models: frozenset[str] | None = None
    """If set, only calls of these models count: a reward after a judge's call then belongs to the call before it."""

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
        """Return the tree as text, and write it to the file, if given, as text (`.txt`) or as a picture (`.svg`)."""
        nodes = self._tree(source)
        calls = {call.node.position for call in find_calls(nodes, self._rule())}
        return draw(nodes, calls, filename)

    def _rule(self) -> Rule:
        return is_llm_call if self.llm_call_match is None else matches_name(self.llm_call_match)

    def _tree(self, source: "Sequence[Span] | Sequence[ReadableSpan]") -> list[SpanNode]:
        nodes = build_tree(as_spans(source))
        if self.repair_hierarchy:
            repair_hierarchy(nodes, may_adopt=self._may_adopt)
        return nodes

    def _may_adopt(self, parent: SpanNode, child: SpanNode) -> bool:
        """Calls run side by side, not inside each other; and what runs beside a scoring function is not part of it."""
        if describes_call(parent.span, self._rule()):
            return False
        return child.is_orphan or reward_of(parent.span) is None

    def _calls(self, nodes: Sequence[SpanNode]) -> list[LLMCall]:
        """Return the calls that count, in the order of time, each with the name of its agent."""
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
    """Return a copy that counts only calls of these models, or the adapter itself if it does not look for calls."""
    if not isinstance(adapter, LLMCallAdapter):
        return adapter
    found = copy.copy(adapter)
    found.models = frozenset(models)
    return found


def _checked_pattern(name: str, pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except (re.error, TypeError) as error:
        raise ConfigError(f"{name} is {pattern!r}, which is not a regular expression: {error}") from None
    return pattern


def as_spans(source: "Iterable[Span | ReadableSpan]") -> list[Span]:
    """Convert spans of the OpenTelemetry SDK to spans of the store."""
    return [span if isinstance(span, Span) else Span.from_opentelemetry(span, "", "", 0) for span in source]
