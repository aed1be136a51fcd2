"""Triplets from a trace: prompt, response and reward of every LLM call.

Prompt and response hold `token_ids` (or, where the trace has none, an empty list and the recorded `messages`), and the
response the sampler's `logprobs` where they were recorded. Nothing is tokenised again.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from ..chat.messages import Message, openai_message
from ..checks import check_choice
from ..semconv import LightningLLMAttributes
from ..types import Span, Triplet
from .base import (
    IS_COMPLETE,
    OPERATION_NAME,
    PROMPT_TOKEN_IDS,
    RESPONSE_LOGPROBS,
    RESPONSE_TOKEN_IDS,
    LLMCall,
    LLMCallAdapter,
    Rule,
    is_gateway_call,
)
from .messages import prompt_messages, response_messages
from .tree import SpanNode, reward_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_FINISH_REASONS = "gen_ai.response.finish_reasons"
_NUM_CHOICES = "gen_ai.request.choice.count"
_VERSIONS = LightningLLMAttributes.WEIGHTS_VERSIONS.value


class RewardMatchPolicy(StrEnum):
    """How rewards are matched to LLM calls.

    A reward belongs to the call that ended last before it, and to no other; a call keeps the first reward that is
    matched to it. So of several calls without a reward in between only the last one is rewarded, and a reward before
    the end of a call is not for that call. Attempts are kept separate.
    """

    FIRST_OCCURRENCE = "first_occurrence"
    """Among all calls."""
    FIRST_SIBLING = "first_sibling"
    """Among the calls that have the same parent as the reward."""


RewardMatch = RewardMatchPolicy | Literal["first_occurrence", "first_sibling"]


class TracerTraceToTriplet(LLMCallAdapter[list[Triplet]]):
    """One triplet for every LLM call that counts, in the order of time.

    The metadata name the response (`response_id`), the agent (`agent_name`) and the span (`span_id`). If recorded, they
    also hold the version of the sampling weights (`weights_version`, and `weights_versions` for each token if there
    were several), why the response ended (`finish_reason`), and the `temperature`, `top_p` and `top_k` of the call.
    A call with several choices is one triplet with the first; `further_choices` are the others, each with `token_ids`,
    `logprobs` and, if known, `weights_versions` and `finish_reason`. Choices of other prompts than the first, which
    completions may have, are only counted (`num_untrained_choices`).

    Args:
        repair_hierarchy: Whether to move spans that lost their parent below the span in whose time they lie.
        llm_call_match: A regular expression for span names, which replaces the usual rules for what is an LLM call.
        agent_match: A regular expression; only calls below a span whose name, agent or operation it matches count.
        exclude_llm_call_in_reward: Whether to leave out calls below a span that carries a reward.
        reward_match: How rewards are matched to calls: see `RewardMatchPolicy`.
    """

    def __init__(
        self,
        repair_hierarchy: bool = True,
        llm_call_match: str | None = None,
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        reward_match: RewardMatch = "first_occurrence",
    ) -> None:
        super().__init__(repair_hierarchy, llm_call_match, agent_match, exclude_llm_call_in_reward)
        check_choice("reward_match", reward_match, [each.value for each in RewardMatchPolicy])
        self.reward_match = RewardMatchPolicy(reward_match)

    def adapt(self, source: "Sequence[Span] | Sequence[ReadableSpan]", /) -> list[Triplet]:
        nodes = self._tree(source)
        calls = self._calls(nodes)
        rewards = match_rewards([call.node for call in calls], nodes, self.reward_match)
        return [_triplet(call, rewards.get(call.node.position)) for call in calls]


TraceToTriplet = TracerTraceToTriplet


class LlmProxyTraceToTriplet(TracerTraceToTriplet):
    """One triplet for every call that the gateway recorded, with the tokens that were sampled.

    The gateway's spans are not part of the agent's tree. If the agent's tracer saw the same response, its span
    gives the place of the call.
    """

    def __init__(self, agent_match: str | None = None, exclude_llm_call_in_reward: bool = True) -> None:
        super().__init__(agent_match=agent_match, exclude_llm_call_in_reward=exclude_llm_call_in_reward)

    def _rule(self) -> Rule:
        return is_gateway_call


def _triplet(call: LLMCall, reward: float | None) -> Triplet:
    prompt = _tokens_or_messages(call.numbers(*PROMPT_TOKEN_IDS), lambda: prompt_messages(call))
    response = _tokens_or_messages(call.numbers(*RESPONSE_TOKEN_IDS), lambda: response_messages(call))
    logprobs = call.numbers(*RESPONSE_LOGPROBS)
    if logprobs:
        response["logprobs"] = logprobs
    metadata = {"response_id": call.response_id, "agent_name": call.agent_name, "span_id": call.node.span.span_id}
    return Triplet(prompt, response, reward, metadata | _recorded(call) | _further_choices(call))


def _recorded(call: LLMCall) -> dict[str, Any]:
    """Return how the response was sampled, as far as it was recorded."""
    reasons = call.read(_FINISH_REASONS)
    found = {
        "model": call.model,
        "weights_version": call.written(LightningLLMAttributes.WEIGHTS_VERSION.value),
        "weights_versions": call.numbers(_VERSIONS) or None,
        "finish_reason": reasons[0] if isinstance(reasons, list | tuple) else reasons,
        "temperature": call.written("gen_ai.request.temperature"),
        "top_p": call.written("gen_ai.request.top_p"),
        "top_k": call.written("gen_ai.request.top_k"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _tokens_or_messages(token_ids: list[int], messages: Callable[[], list[Message]]) -> dict[str, Any]:
    if token_ids:
        return {"token_ids": token_ids}
    found = [openai_message(each) for each in messages()]
    return {"token_ids": [], "messages": found} if found else {"token_ids": []}


# -- several choices ---------------------------------------------------------------------------------


def _further_choices(call: LLMCall) -> dict[str, Any]:
    """Return the `further_choices` of the same prompt; for several prompts, only their number.

    A trace has the tokens of the first prompt only, so the responses to the others cannot be trained on.
    """
    ids = call.choices(*RESPONSE_TOKEN_IDS)
    if len(ids) < 2:
        return {}
    if not _has_one_prompt(call, len(ids)):
        return {"num_untrained_choices": len(ids) - 1}
    logprobs, versions = (_per_choice(call.choices(*keys), len(ids)) for keys in (RESPONSE_LOGPROBS, (_VERSIONS,)))
    reasons = _per_choice(call.read(_FINISH_REASONS), len(ids))
    found = []
    for place in range(1, len(ids)):
        choice: dict[str, Any] = {"token_ids": ids[place], "logprobs": logprobs[place] or []}
        if versions[place]:
            choice["weights_versions"] = versions[place]
        if reasons[place]:
            choice["finish_reason"] = reasons[place]
        found.append(choice)
    return {"further_choices": found}


def _has_one_prompt(call: LLMCall, num_choices: int) -> bool:
    """A chat has one. Complete responses to several prompts have more choices than were requested for each."""
    operations = {span.attributes[OPERATION_NAME] for span in call.spans if OPERATION_NAME in span.attributes}
    if operations == {"chat"}:
        return True
    return call.written(IS_COMPLETE) is not False and call.written(_NUM_CHOICES) == num_choices


def _per_choice(values: Any, count: int) -> list[Any]:
    """Return one value for each choice; if their number differs, it is unknown which belongs to which."""
    return list(values) if isinstance(values, list | tuple) and len(values) == count else [None] * count


# -- rewards -----------------------------------------------------------------------------------------


def match_rewards(calls: Sequence[SpanNode], nodes: Iterable[SpanNode], policy: RewardMatchPolicy) -> dict[int, float]:
    """Return rewards by the position of their call. A call whose span carries a reward keeps that one."""
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
    """Return the last of the calls, sorted by their end, that had ended at the time of the reward."""
    count = bisect_right(calls, reward.start, key=lambda call: call.end)
    # If times are equal or missing, the order decides.
    return next((call for call in reversed(calls[:count]) if call.position < reward.position), None)
