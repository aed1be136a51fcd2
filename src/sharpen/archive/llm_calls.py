"""LLM calls as entries of a transcript: new messages, answers, results of the requested tools, usage and tokens.

Most agents send the whole conversation with every call. `Conversation` remembers the messages, so that a call shows
only what is new in it.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from ..adapter.base import (
    AGENT_NAME,
    IS_COMPLETE,
    OPERATION_NAME,
    PROMPT_TOKEN_IDS,
    RESPONSE_LOGPROBS,
    RESPONSE_TOKEN_IDS,
    LLMCall,
    find_calls,
    is_gateway_call,
    is_in_reward,
    is_llm_call,
    link_conversations,
)
from ..adapter.messages import prompt_messages, response_messages
from ..adapter.tree import SpanNode, build_tree
from ..adapter.triplet import RewardMatchPolicy, match_rewards
from ..chat.messages import Message as ChatMessage, content_text, openai_content
from ..chat.streams import ResponseReader
from ..checks import is_int
from ..llm_proxy.recording.exchanges import exchange_of_span
from ..semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from ..types import Span
from .entries import Entry, Message, TokenStrip, ToolCall, Usage, error_of, is_call, is_tool, tool_call_of

_COST = LightningLLMAttributes.COST.value
_WEIGHTS_VERSION = LightningLLMAttributes.WEIGHTS_VERSION.value
_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")


class _RequestedTool:
    """A tool call of a model that waits for its result."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.result: str | None = None


class CallEntries:
    """The entries of all calls of a trace, by the position of their spans."""

    def __init__(self, nodes: Sequence[SpanNode]) -> None:
        self.calls = _with_tries(find_calls(nodes, is_call))
        link_conversations(self.calls)
        by_span = {id(node.span): node.position for node in nodes}
        self.positions = {by_span[id(span)] for call in self.calls for span in call.spans}
        """Of every span that records a call."""
        self.turns = [call for call in self.calls if not is_in_reward(call)]
        """The agent's own calls, in order."""
        self._numbers = {call.node.position: number for number, call in enumerate(self.turns, start=1)}
        own = [call.node for call in self.turns]
        self._rewards = match_rewards(own, nodes, RewardMatchPolicy.FIRST_OCCURRENCE)
        self._requested: list[_RequestedTool] = []
        self._conversation = Conversation()

    def entries(self, nodes: Sequence[SpanNode]) -> dict[int, Entry]:
        """Return an entry for each call, made in order of time so that each knows the messages and calls before it."""
        by_position = {call.node.position: call for call in self.calls}
        made: list[tuple[int, Entry, list[_RequestedTool]]] = []
        for node in nodes:
            if node.position in by_position:
                made.append((node.position, *self._entry(by_position[node.position])))
            elif node.position not in self.positions and is_tool(node.span):
                self._take_result_of_span(tool_call_of(node.span))
        # The result may be in a much later call than the one that requested it: results are filled in last.
        return {position: _with_results(entry, requested) for position, entry, requested in made}

    def _entry(self, call: LLMCall) -> tuple[Entry, list[_RequestedTool]]:
        prompt = [_message(each) for each in prompt_messages(call)]
        answers = [_message(each) for each in response_messages(call)]
        operation, agent = call.written(OPERATION_NAME) or "chat", call.written(AGENT_NAME)
        agent = str(agent) if agent else None
        known = self._conversation.add(prompt, answers, agent=agent)
        new = [message for message in prompt[known:] if not self._take_result(message)]
        requested = [_RequestedTool(each) for each in answers[0].tool_calls] if answers else []
        self._requested += requested
        node = call.node
        entry = Entry(
            kind="call",
            span_id=node.span.span_id,
            title=f"{operation} {call.model}" if call.model else str(operation),
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
            tokens=_token_strip(call),
            turn=self._numbers.get(node.position),
            reward=self._rewards.get(node.position),
        )
        return entry, requested

    def _take_result(self, message: Message) -> bool:
        """Return whether a message is the result of a requested tool; it is then kept with that call."""
        if message.role != "tool":
            return False
        for each in reversed(self._requested) if message.name else self._requested:
            # Some recorders leave the id out, and record the result in the span of the tool as well.
            is_same = each.call.id == message.name if message.name else each.result in (None, message.text)
            if is_same:
                each.result = message.text
                return True
        return False

    def _take_result_of_span(self, ran: ToolCall) -> None:
        if ran.result is None:
            return
        for each in reversed(self._requested):
            is_same = each.call.id == ran.id if ran.id else each.call.name == ran.name and each.result is None
            if is_same and each.result is None:
                each.result = ran.result
                return


def _with_tries(calls: Sequence[LLMCall]) -> list[LLMCall]:
    """Merge the tries of a client into one call.

    A failed try has no response id to recognise it by, so it goes to the only call of the agent to the same model that
    contains it in time.
    """
    of_agent = [call for call in calls if not _is_of_gateway(call)]
    kept: list[LLMCall] = []
    for call in calls:
        is_try = _is_of_gateway(call) and call.has_failed and call.response_id is None
        around = [each for each in of_agent if _contains(each, call)] if is_try else []
        if len(around) == 1:
            around[0].spans += call.spans
        else:
            kept.append(call)
    return kept


def _is_of_gateway(call: LLMCall) -> bool:
    return call.node.span.name == SHARPEN_LLM_CALL


def _contains(outer: LLMCall, inner: LLMCall) -> bool:
    return outer.node.contains(inner.node) and outer.model == inner.model


def _with_results(entry: Entry, requested: Sequence[_RequestedTool]) -> Entry:
    if not requested or entry.answer is None:
        return entry
    calls = [msgspec.structs.replace(each.call, result=each.result) for each in requested]
    answer = msgspec.structs.replace(entry.answer, tool_calls=calls)
    return msgspec.structs.replace(entry, tool_calls=calls, answer=answer)


def _message(recorded: ChatMessage) -> Message:
    """Return a recorded message as a person reads it."""
    name = getattr(recorded.result, "id", None) if recorded.role == "tool" else recorded.name
    text = content_text(openai_content(recorded)) or recorded.refusal
    calls = [
        ToolCall(None if call.id is None else str(call.id), str(call.name or "tool"), call.arguments_text)
        for call in recorded.tool_calls
    ]
    return Message(recorded.role, text, calls, None if name is None else str(name), recorded.reasoning or None)


# -- conversations -----------------------------------------------------------------------------------

_Key = tuple[str, ...]


class Conversation:
    """The messages so far, of all participants. A call that continues any earlier one is recognised."""

    def __init__(self) -> None:
        self._beginnings: set[int] = set()
        self._last: dict[str | None, Sequence[_Key]] = {}

    def add(self, prompt: Sequence[Message], answers: Sequence[Message], *, agent: str | None = None) -> int:
        """Add a call and return how many messages at the front of its prompt were known already."""
        keys = [_key(message) for message in prompt]
        chain = _chained(keys)
        known = next((number for number in range(len(keys), 0, -1) if chain[number - 1] in self._beginnings), 0)
        # An agent may keep only the newest part of its conversation, behind the same instructions.
        known += _overlap(self._last.get(agent, ()), keys[known:])
        self._beginnings.update(chain)
        for answer in answers:
            self._beginnings.add(hash((chain[-1] if chain else 0, _key(answer))))
        self._last[agent] = [*keys, *(_key(answer) for answer in answers[:1])]
        return known


def _key(message: Message) -> _Key:
    """Return equal keys for messages of equal content; an agent may send an answer back without thoughts and ids."""
    calls = [part for call in message.tool_calls for part in (call.name, _normalised_json(call.arguments))]
    return (message.role, message.text.strip(), *calls)


def _normalised_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _chained(keys: Sequence[_Key]) -> list[int]:
    """Return a hash for each beginning of the list."""
    chain: list[int] = []
    number = 0
    for key in keys:
        number = hash((number, key))
        chain.append(number)
    return chain


def _overlap(earlier: Sequence[_Key], later: Sequence[_Key]) -> int:
    """Return how many messages at the front of `later` are the last ones of `earlier`."""
    sizes = (size for size in range(min(len(earlier), len(later)), 0, -1) if earlier[-size] == later[0])
    return next((size for size in sizes if list(earlier[-size:]) == list(later[:size])), 0)


# -- errors and usage --------------------------------------------------------------------------------


def _error(call: LLMCall) -> str | None:
    """Return why a call has no answer, or only a part of one."""
    is_cut = any(span.attributes.get(IS_COMPLETE) is False for span in call.spans)
    if not call.has_failed and not is_cut:
        return None
    found = [error for span in reversed(call.spans) if (error := error_of(span)) is not None]
    return found[0] if found else "the response ended early"


def _failed_tries(call: LLMCall) -> str | None:
    """Return the errors of the tries before the last, if a client retried by itself."""
    if call.has_failed:
        return None
    found = [error for span in call.spans if (error := error_of(span)) is not None]
    return "\n".join(f"an earlier try failed: {error}" for error in found) or None


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
    """A store in memory keeps whatever agents write, including values that are not numbers."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


# -- tokens ------------------------------------------------------------------------------------------


def token_strips(spans: Sequence[Span]) -> dict[str, TokenStrip]:
    """Return the tokens of all calls among the spans, by the id of the call's span."""
    calls = find_calls(build_tree(spans), lambda span: is_llm_call(span) or is_gateway_call(span))
    found = ((call.node.span.span_id, _token_strip(call)) for call in calls)
    return {span_id: strip for span_id, strip in found if strip is not None}


def _token_strip(call: LLMCall) -> TokenStrip | None:
    """Return the tokens of a call's first choice; None if its spans hold none."""
    prompt_ids = [value for value in call.numbers(*PROMPT_TOKEN_IDS) if is_int(value)]
    response_ids = [value for value in call.numbers(*RESPONSE_TOKEN_IDS) if is_int(value)]
    logprobs = [
        float(value) if is_int(value) or isinstance(value, float) else None
        for value in call.numbers(*RESPONSE_LOGPROBS)
    ]
    if not response_ids and not logprobs:
        return None
    count = len(response_ids) or len(logprobs)
    texts, version = _token_texts(call.spans), call.written(_WEIGHTS_VERSION)
    return TokenStrip(
        prompt_ids,
        response_ids,
        (logprobs + [None] * count)[:count],
        texts if len(texts) == count else None,
        None if version is None else str(version),
    )


def _token_texts(spans: Sequence[Span]) -> list[str]:
    """Return the token texts of the first choice, if any.

    Only the raw exchanges of a recording gateway hold them, and only if log-probabilities were requested.
    """
    for span in spans:
        exchange = exchange_of_span(span)
        if exchange is not None and exchange.content_encoding is None and b'"logprobs"' in exchange.body:
            reader = ResponseReader(exchange.api, is_stream="event-stream" in exchange.content_type)
            reader.feed(exchange.body)
            return next((choice.token_texts for choice in reader.finish().choices), [])
    return []
