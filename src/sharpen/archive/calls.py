"""LLM calls as entries: what was new in each, what came back, and the results of the tools that it asked for."""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from ..adapter.calls import LLMCall, find_calls, is_in_reward, link_conversations
from ..adapter.messages import prompt_messages, response_messages
from ..adapter.rewards import RewardMatchPolicy, match_rewards
from ..adapter.tree import SpanNode
from ..semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from .conversation import Conversation, Message, ToolCall, Usage, message_of
from .entries import Entry, error_of, is_call, is_tool, tool_call_of
from .tokens import token_strip

_IS_COMPLETE = LightningLLMAttributes.IS_COMPLETE.value
_COST = LightningLLMAttributes.COST.value
_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")


class _Asked:
    """A tool call of a model that waits for its result."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.result: str | None = None

    def answered(self) -> ToolCall:
        return msgspec.structs.replace(self.call, result=self.result)


class CallEntries:
    """The entries of all calls of a trace, by the position of their spans."""

    def __init__(self, nodes: Sequence[SpanNode]) -> None:
        self.calls = _with_tries(find_calls(nodes, is_call))
        link_conversations(self.calls)
        self.positions = _positions(self.calls, nodes)
        """Of every span that tells of a call."""
        self.turns = [call for call in self.calls if not is_in_reward(call)]
        """The agent's own calls, in order."""
        self._numbers = {call.node.position: number for number, call in enumerate(self.turns, start=1)}
        own = [call.node for call in self.turns]
        self._rewards = match_rewards(own, nodes, RewardMatchPolicy.FIRST_OCCURRENCE)
        self._asked: list[_Asked] = []
        self._conversation = Conversation()

    def entries(self, nodes: Sequence[SpanNode]) -> dict[int, Entry]:
        """In the order of time, so that each call knows what was said and asked before it."""
        by_position = {call.node.position: call for call in self.calls}
        made: list[tuple[int, Entry, list[_Asked]]] = []
        for node in nodes:
            if node.position in by_position:
                made.append((node.position, *self._entry(by_position[node.position])))
            elif node.position not in self.positions and is_tool(node.span):
                self._take_result_of_span(tool_call_of(node.span))
        # A result may stand in a call far behind the one that asked: results are filled in last.
        return {position: _with_results(entry, asked) for position, entry, asked in made}

    def _entry(self, call: LLMCall) -> tuple[Entry, list[_Asked]]:
        prompt = [message_of(each) for each in prompt_messages(call)]
        answers = [message_of(each) for each in response_messages(call)]
        agent = _agent_of(call)
        known = self._conversation.add(prompt, answers, agent=agent)
        new = [message for message in prompt[known:] if not self._take_result(message)]
        asked = [_Asked(each) for each in answers[0].tool_calls] if answers else []
        self._asked += asked
        node = call.node
        entry = Entry(
            kind="call",
            span_id=node.span.span_id,
            title=_title(call),
            start=node.span.start_time,
            end=node.span.end_time,
            messages=new,
            answer=answers[0] if answers else None,
            further_answers=answers[1:],
            num_repeated=known,
            agent=agent,
            text=_failed_tries(call),
            error=_error(call),
            model=call.model,
            usage=_usage(call),
            tokens=token_strip(call),
            turn=self._numbers.get(node.position),
            reward=self._rewards.get(node.position),
        )
        return entry, asked

    def _take_result(self, message: Message) -> bool:
        """Whether a message is the result of a tool that was asked for; then it stands with that call."""
        if message.role != "tool":
            return False
        for asked in reversed(self._asked) if message.name else self._asked:
            # Some recorders leave the id out, and tell the result in the span of the tool as well.
            is_it = asked.call.id == message.name if message.name else asked.result in (None, message.text)
            if is_it:
                asked.result = message.text
                return True
        return False

    def _take_result_of_span(self, ran: ToolCall) -> None:
        if ran.result is None:
            return
        for asked in reversed(self._asked):
            is_it = asked.call.id == ran.id if ran.id else asked.call.name == ran.name and asked.result is None
            if is_it and asked.result is None:
                asked.result = ran.result
                return


def _with_tries(calls: Sequence[LLMCall]) -> list[LLMCall]:
    """Calls in which a client tried several times are one: a try that failed has no id to know it by, so it goes to
    the only call of the agent, of the same model, in whose time it lies."""
    told = [call for call in calls if not _is_of_gateway(call)]
    kept: list[LLMCall] = []
    for call in calls:
        is_try = _is_of_gateway(call) and call.has_failed and call.response_id is None
        around = [each for each in told if _holds(each, call)] if is_try else []
        if len(around) == 1:
            around[0].spans += call.spans
        else:
            kept.append(call)
    return kept


def _is_of_gateway(call: LLMCall) -> bool:
    return call.node.span.name == SHARPEN_LLM_CALL


def _holds(outer: LLMCall, inner: LLMCall) -> bool:
    return outer.node.contains(inner.node) and outer.model == inner.model


def _positions(calls: Sequence[LLMCall], nodes: Sequence[SpanNode]) -> set[int]:
    by_span = {id(node.span): node.position for node in nodes}
    return {by_span[id(span)] for call in calls for span in call.spans}


def _with_results(entry: Entry, asked: Sequence[_Asked]) -> Entry:
    if not asked or entry.answer is None:
        return entry
    calls = [each.answered() for each in asked]
    return msgspec.structs.replace(
        entry, tool_calls=calls, answer=msgspec.structs.replace(entry.answer, tool_calls=calls)
    )


# -- what spans say of a call ------------------------------------------------------------------------


def _title(call: LLMCall) -> str:
    operation = call.written("gen_ai.operation.name") or "chat"
    return f"{operation} {call.model}" if call.model else str(operation)


def _agent_of(call: LLMCall) -> str | None:
    name = call.written("gen_ai.agent.name")
    return str(name) if name else None


def _error(call: LLMCall) -> str | None:
    """Why a call has no answer, or not a whole one."""
    is_cut = any(span.attributes.get(_IS_COMPLETE) is False for span in call.spans)
    if not call.has_failed and not is_cut:
        return None
    found = [error for span in reversed(call.spans) if (error := error_of(span)) is not None]
    return found[0] if found else "the answer ended early"


def _failed_tries(call: LLMCall) -> str | None:
    """What the tries before the last came to, where a client tried again by itself."""
    if call.has_failed:
        return None
    found = [error for span in call.spans if (error := error_of(span)) is not None]
    return "\n".join(f"a try before failed: {error}" for error in found) or None


def _usage(call: LLMCall) -> Usage:
    cost, span = call.written(_COST), call.node.span
    is_timed = span.start_time is not None and span.end_time is not None
    return Usage(
        _count(call, _INPUT_TOKENS),
        _count(call, _OUTPUT_TOKENS),
        float(cost) if _is_finite(cost) else None,
        1,
        max(0.0, span.end_time - span.start_time) if is_timed else 0.0,  # type: ignore[operator]
    )


def _count(call: LLMCall, keys: Sequence[str]) -> int:
    values: list[Any] = [call.written(key) for key in keys]
    return next((int(value) for value in values if _is_finite(value)), 0)


def _is_finite(value: Any) -> bool:
    """A store in memory keeps what agents write, also what is no number."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
