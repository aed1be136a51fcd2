"""Triplets from a trace: prompt, response and reward of every LLM call.

Prompt and response hold `token_ids` (empty where the trace has none, then with the `messages` that it has instead), and
the response the sampler's `logprobs` where they were recorded. Nothing is tokenised again.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..chat.messages import Message, openai_message
from ..checks import check_choice
from ..semconv import LightningLLMAttributes
from ..types import Span, Triplet
from .calls import PROMPT_TOKEN_IDS, RESPONSE_LOGPROBS, RESPONSE_TOKEN_IDS, LLMCall, Rule, is_gateway_call
from .choices import further_choices
from .messages import prompt_messages, response_messages
from .rewards import RewardMatchPolicy, match_rewards
from .selection import LLMCallAdapter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

RewardMatch = RewardMatchPolicy | Literal["first_occurrence", "first_sibling"]


class TracerTraceToTriplet(LLMCallAdapter[list[Triplet]]):
    """One triplet for every LLM call that counts, in the order of time.

    The metadata name the response (`response_id`), the agent (`agent_name`) and the span (`span_id`). Where they were
    recorded, they also hold the version of the weights that sampled (`weights_version`, and `weights_versions` of each
    token where there were several), why it ended (`finish_reason`), and the `temperature`, `top_p` and `top_k` of the
    call. Of a call with several choices the triplet has the first; `further_choices` are the others, each with
    `token_ids`, `logprobs` and, where known, `weights_versions` and `finish_reason`. Choices of other prompts than the
    first, which completions may have, are only counted (`num_untrained_choices`).
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
        self.reward_match = _policy(reward_match)

    def adapt(self, source: "Sequence[Span] | Sequence[ReadableSpan]", /) -> list[Triplet]:
        nodes = self._tree(source)
        calls = self._calls(nodes)
        rewards = match_rewards([call.node for call in calls], nodes, self.reward_match)
        return [_triplet(call, rewards.get(call.node.position)) for call in calls]


TraceToTriplet = TracerTraceToTriplet


class LlmProxyTraceToTriplet(TracerTraceToTriplet):
    """One triplet for every call that the gateway recorded: these know what was sampled.

    They stand in no tree of their own. Where the agent's tracer saw the same response, its span tells the place.
    """

    def __init__(self, agent_match: str | None = None, exclude_llm_call_in_reward: bool = True) -> None:
        super().__init__(agent_match=agent_match, exclude_llm_call_in_reward=exclude_llm_call_in_reward)

    def _rule(self) -> Rule:
        return is_gateway_call


def _policy(value: str) -> RewardMatchPolicy:
    return RewardMatchPolicy(check_choice("reward_match", value, [each.value for each in RewardMatchPolicy]))


def _triplet(call: LLMCall, reward: float | None) -> Triplet:
    prompt = _tokens_or_messages(call.numbers(*PROMPT_TOKEN_IDS), lambda: prompt_messages(call))
    response = _tokens_or_messages(call.numbers(*RESPONSE_TOKEN_IDS), lambda: response_messages(call))
    logprobs = call.numbers(*RESPONSE_LOGPROBS)
    if logprobs:
        response["logprobs"] = logprobs
    metadata = {"response_id": call.response_id, "agent_name": call.agent_name, "span_id": call.node.span.span_id}
    return Triplet(prompt, response, reward, metadata | _recorded(call) | further_choices(call))


def _recorded(call: LLMCall) -> dict[str, Any]:
    """How the response was sampled, as far as the trace tells."""
    reasons = call.read("gen_ai.response.finish_reasons")
    found = {
        "model": call.model,
        "weights_version": call.written(LightningLLMAttributes.WEIGHTS_VERSION.value),
        "weights_versions": call.numbers(LightningLLMAttributes.WEIGHTS_VERSIONS.value) or None,
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
