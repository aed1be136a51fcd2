"""The base classes of adapters, which turn what was recorded into what algorithms consume, and the LLM calls they use.

One call may be recorded several times: by two instrumentations, one inside the other, and by the gateway. It still
counts once; its place is that of the agent's own span, and attributes missing from one span are read from the others.
`LLMCallAdapter` is what the adapters of LLM calls share: the tree of a trace, and the calls in it that count.
"""

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..chat.messages import read_json
from ..errors import ConfigError
from ..semconv import SHARPEN_LLM_CALL, LightningLLMAttributes, LightningSpanAttributes
from ..types import Span
from .tree import SpanNode, build_tree, draw, repair_hierarchy, reward_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

OPERATION_NAME = "gen_ai.operation.name"
RESPONSE_ID = "gen_ai.response.id"
AGENT_NAME = "gen_ai.agent.name"

LLM_OPERATIONS = ("chat", "text_completion", "generate_content")
_KNOWN_SPAN_NAME = re.compile(r"openai\.chat\.completion")
# Our name first, then that of other recorders.
PROMPT_TOKEN_IDS = (LightningLLMAttributes.PROMPT_TOKEN_IDS.value, "prompt_token_ids")
RESPONSE_TOKEN_IDS = (LightningLLMAttributes.RESPONSE_TOKEN_IDS.value, "response_token_ids")
RESPONSE_LOGPROBS = (LightningLLMAttributes.RESPONSE_LOGPROBS.value, "response_logprobs")

IS_COMPLETE = LightningLLMAttributes.IS_COMPLETE.value
_REQUEST_MODEL = "gen_ai.request.model"
_PREVIOUS_RESPONSE_ID = LightningLLMAttributes.PREVIOUS_RESPONSE_ID.value
# A span with any of these has a response of the model.
_RESPONSE_KEYS = (
    *RESPONSE_TOKEN_IDS,
    "gen_ai.output.messages",
    "gen_ai.completion.0.role",
    "gen_ai.completion.0.content",
)

Rule = Callable[[Span], bool]

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


# -- LLM calls ---------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class LLMCall:
    """One LLM call: its place in the tree, and every span that describes it."""

    node: SpanNode
    spans: list[Span] = field(default_factory=list)
    agent_name: str | None = None
    # The call whose response this one continues, if the API keeps conversations.
    previous: "LLMCall | None" = None
    # The call before this one in the order of time.
    before: "LLMCall | None" = None

    @property
    def response_id(self) -> str | None:
        return next(filter(None, map(_response_id, self.spans)), None)

    def read(self, *keys: str) -> Any:
        """Return the value of the first of these attributes that any of the spans has."""
        present = ((span, key) for key in keys for span in self.spans if key in span.attributes)
        return next((value for span, key in present if (value := read_json(span, key))), None)

    def written(self, key: str) -> Any:
        """Return the attribute of the first span that has it, not parsed."""
        return next((span.attributes[key] for span in self.spans if key in span.attributes), None)

    def choices(self, *keys: str) -> list[list[Any]]:
        """Return lists of token ids or log-probabilities, one for each choice."""
        value = self.read(*keys)
        if not isinstance(value, list):
            return []
        if not isinstance(value[0], list):
            return [list(value)]
        return [list(each) if isinstance(each, list) else [] for each in value]

    def numbers(self, *keys: str) -> list[Any]:
        """Return the list of the first choice."""
        found = self.choices(*keys)
        return found[0] if found else []

    @property
    def model(self) -> str | None:
        """The name of the requested model; the gateway's name, if the gateway recorded the call."""
        spans = sorted(self.spans, key=lambda span: span.name != SHARPEN_LLM_CALL)
        return next((str(span.attributes[_REQUEST_MODEL]) for span in spans if _REQUEST_MODEL in span.attributes), None)

    @property
    def has_failed(self) -> bool:
        """Whether it ended in an error before there was a response."""
        if any(span.status.status_code != "ERROR" for span in self.spans):
            return False
        if any(key in span.attributes for span in self.spans for key in _RESPONSE_KEYS):
            return False
        # A stream that was cut at once has an id, but no content.
        return self.response_id is None or any(span.attributes.get(IS_COMPLETE) is False for span in self.spans)


# -- which spans are calls ---------------------------------------------------------------------------


def is_llm_call(span: Span) -> bool:
    """Whether the span has the GenAI operation of a call, or a span name known from older recorders."""
    return span.attributes.get(OPERATION_NAME) in LLM_OPERATIONS or _KNOWN_SPAN_NAME.search(span.name) is not None


def is_gateway_call(span: Span) -> bool:
    """Whether the gateway recorded the span: it has the gateway's name, or token ids, which only a gateway knows."""
    if any(key in span.attributes for key in RESPONSE_TOKEN_IDS):
        return True
    # The gateway records embeddings under the same name; nothing is sampled there.
    return span.name == SHARPEN_LLM_CALL and span.attributes.get(OPERATION_NAME) != "embeddings"


def describes_call(span: Span, rule: Rule) -> bool:
    """Whether the rule or any of the usual ones accepts the span."""
    return rule(span) or is_llm_call(span) or is_gateway_call(span)


def matches_name(pattern: str) -> Rule:
    """Return a rule that accepts spans by a regular expression for their names."""
    matches = re.compile(pattern).search
    return lambda span: matches(span.name) is not None


# -- finding them ------------------------------------------------------------------------------------


def find_calls(nodes: Sequence[SpanNode], rule: Rule) -> list[LLMCall]:
    """Return the calls of which the rule accepts any span, in the order of time."""
    calls: dict[int, LLMCall] = {}
    gateway: list[SpanNode] = []
    for node in _candidates(nodes, rule):
        outer = _same_call_above(node, calls)
        if outer is not None:
            outer.spans.append(node.span)
            calls[node.position] = outer
        elif node.span.name == SHARPEN_LLM_CALL:
            gateway.append(node)
        else:
            calls[node.position] = LLMCall(node, [node.span])
    _add_gateway_calls(gateway, calls)
    distinct = {call.node.position: call for call in calls.values() if any(map(rule, call.spans))}
    return [distinct[position] for position in sorted(distinct)]


def _candidates(nodes: Sequence[SpanNode], rule: Rule) -> list[SpanNode]:
    """Return spans of calls, parents before their children, even if the clock has them the other way round."""
    known = [node for node in nodes if describes_call(node.span, rule)]
    return sorted(known, key=lambda node: sum(1 for _ in node.ancestors()))


def _same_call_above(node: SpanNode, calls: dict[int, LLMCall]) -> LLMCall | None:
    """Return the call above that this span describes too: it is the gateway's, or has the same response id."""
    outer = next((calls[above.position] for above in node.ancestors() if above.position in calls), None)
    if outer is None:
        return None
    inner_id, outer_id = _response_id(node.span), outer.response_id
    is_gateway = node.span.name == SHARPEN_LLM_CALL and None in (inner_id, outer_id)
    return outer if is_gateway or (inner_id is not None and inner_id == outer_id) else None


def _add_gateway_calls(gateway: Sequence[SpanNode], calls: dict[int, LLMCall]) -> None:
    """Add each span to the agent's call with the same response id; one that the agent did not record is a new call."""
    by_id: dict[str, list[LLMCall]] = {}
    for call in sorted(set(calls.values()), key=lambda call: call.node.position):
        if call.response_id is not None:
            by_id.setdefault(call.response_id, []).append(call)
    for node in sorted(gateway, key=lambda node: node.position):
        same = by_id.get(_response_id(node.span) or "", [])
        if same:
            same.pop(0).spans.append(node.span)
        else:
            calls[node.position] = LLMCall(node, [node.span])


def _response_id(span: Span) -> str | None:
    value = span.attributes.get(RESPONSE_ID)
    return str(value) if value else None


def link_conversations(calls: Sequence[LLMCall]) -> None:
    """Set the call that each one continues: with some APIs a request only names the previous response."""
    by_id = {call.response_id: call for call in reversed(calls) if call.response_id is not None}
    for before, call in zip((None, *calls), calls, strict=False):
        call.before = before
        named_ids = (span.attributes.get(_PREVIOUS_RESPONSE_ID) for span in call.spans)
        call.previous = next((by_id[each] for each in named_ids if each in by_id), None)


# -- leaving some out --------------------------------------------------------------------------------


def is_in_reward(call: LLMCall) -> bool:
    """Whether the call was made to compute a reward: it is below a span that carries one."""
    return any(reward_of(above.span) is not None for above in call.node.ancestors())


def agent_of(call: LLMCall, pattern: str | None) -> str | None:
    """Return the name of the nearest agent above the call, or of the nearest that the pattern matches.

    A pattern is matched against the names of the spans above, of their agents and of their operations.
    """
    names = [[name for span in call.spans for name in _agent_names(span)]]
    names += [_names(above.span, with_spans=pattern is not None) for above in call.node.ancestors()]
    return next((group[0] for group in names if any(re.search(pattern or "", name) for name in group)), None)


def _agent_names(span: Span) -> Iterator[str]:
    return (str(span.attributes[key]) for key in (AGENT_NAME, "agent.name") if span.attributes.get(key))


def _names(span: Span, *, with_spans: bool) -> list[str]:
    names = list(_agent_names(span))
    if with_spans:
        operation = span.attributes.get(LightningSpanAttributes.OPERATION_NAME.value)
        names += [str(operation), span.name] if operation else [span.name]
    return names


# -- their adapters ----------------------------------------------------------------------------------


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
