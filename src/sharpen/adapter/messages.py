"""Conversations from a trace, in OpenAI's chat format, ready for fine-tuning."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypedDict

from ..types import Span
from .calls import OPERATION_NAME, LLMCall
from .chat import Message, Tool, prompt_messages, response_messages, tools
from .selection import LLMCallAdapter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class OpenAIMessages(TypedDict):
    """One conversation, ending with the model's answer, and the tools that the model was given."""

    messages: list[Message]
    tools: list[Tool] | None


class TraceToMessages(LLMCallAdapter[list[OpenAIMessages]]):
    """One conversation for every LLM call that counts, in the order of time; for several choices one for each.

    A call whose messages were not recorded gives none.
    """

    def adapt(self, source: "Sequence[Span] | Sequence[ReadableSpan]", /) -> list[OpenAIMessages]:
        calls = self._calls(self._tree(source))
        return [conversation for call in calls for conversation in _conversations(call)]


def _conversations(call: LLMCall) -> Iterator[OpenAIMessages]:
    prompt, answers = prompt_messages(call), response_messages(call)
    is_batch = call.written(OPERATION_NAME) == "text_completion" and all(each["role"] == "user" for each in prompt)
    if prompt:
        for number, answer in enumerate(answers):
            # A completion may be asked for several prompts at once; the answers to each stand together.
            given = [prompt[number * len(prompt) // len(answers)]] if is_batch else prompt
            yield {"messages": [*given, answer], "tools": tools(call)}
