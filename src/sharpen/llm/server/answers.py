"""Whole answers, as JSON in the shape of OpenAI's APIs with vLLM's names for token ids."""

import os
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ..engine import Generation, Sample
from .fields import ChatFields, CompletionFields, Fields
from .prompts import Prompt
from .token_texts import TokenTexts
from .tool_calls import ToolCall, ToolCallReader

Api = Literal["chat", "completions"]

encode = msgspec.json.Encoder().encode
_PREFIXES: dict[Api, str] = {"chat": "chatcmpl-", "completions": "cmpl-"}


def new_id(api: Api) -> str:
    return _PREFIXES[api] + os.urandom(12).hex()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that is being answered: its fields, its prompts, and the name that its answer gets."""

    api: Api
    fields: Fields
    prompts: list[Prompt]
    model: str
    id: str
    created: int

    @property
    def reads_tool_calls(self) -> bool:
        fields = self.fields
        return isinstance(fields, ChatFields) and fields.tool_choice != "none" and bytes(fields.tools) not in _NO_TOOLS

    def head(self, kind: str, version: int) -> dict[str, Any]:
        """How every answer and every event of a stream begins."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "weights_version": str(version),
        }


_NO_TOOLS = (b"null", b"[]")


def usage(num_prompt: int, num_sampled: int, num_cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_sampled,
        "total_tokens": num_prompt + num_sampled,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def usage_of(generations: list[Generation]) -> dict[str, Any]:
    """Of all prompts and all samples together."""
    return usage(
        sum(len(each.prompt_ids) for each in generations),
        sum(len(sample.token_ids) for each in generations for sample in each.samples),
        sum(each.cached_tokens for each in generations),
    )


class AnswerWriter:
    """Writes what the engine sampled."""

    def __init__(self, texts: TokenTexts) -> None:
        self.texts = texts

    def write(self, asked: Asked, generations: list[Generation]) -> bytes:
        is_chat, version = asked.api == "chat", generations[0].samples[0].versions[0]
        body = asked.head("chat.completion" if is_chat else "text_completion", version)
        body["choices"] = [
            self._choice(asked, prompt, sample, number * len(generation.samples) + sample.index, version)
            for number, (prompt, generation) in enumerate(zip(asked.prompts, generations, strict=True))
            for sample in generation.samples
        ]
        body["usage"] = usage_of(generations)
        if asked.fields.return_token_ids and is_chat:
            body["prompt_token_ids"] = asked.prompts[0].json
        return encode(body)

    def _choice(self, asked: Asked, prompt: Prompt, sample: Sample, index: int, version: int) -> dict[str, Any]:
        fields, reason = asked.fields, finish_reason(sample.finish_reason)
        choice: dict[str, Any] = {"index": index}
        if isinstance(fields, ChatFields):
            choice["message"] = message = _message(asked, fields, prompt, sample)
            reason = "tool_calls" if reason == "stop" and message.get("tool_calls") else reason
        else:
            choice["text"] = sample.text
        choice["finish_reason"] = reason
        choice["stop_reason"] = stop_reason(fields, sample.stop)
        choice["logprobs"] = self.logprobs(fields, sample.token_ids, sample.logprobs, sample.top_logprobs)
        if fields.return_token_ids:
            choice["token_ids"] = sample.token_ids
            if isinstance(fields, CompletionFields):
                choice["prompt_token_ids"] = prompt.json
        if (sample.versions[0], sample.versions[-1]) != (version, version):
            choice["weights_versions"] = list(map(str, sample.versions))
        return choice

    def logprobs(self, fields: Fields, ids: list[int], logprobs: list[float], tops: Any, *, offset: int = 0) -> Any:
        """Those of a choice, None where they are not asked for."""
        if fields.num_top is None:
            return None
        if isinstance(fields, ChatFields):
            return self.texts.chat_logprobs(ids, logprobs, tops)
        return self.texts.completion_logprobs(ids, logprobs, tops, offset=offset)


def finish_reason(reason: str) -> str:
    """A sample that was cut from outside has no word of its own there."""
    return "stop" if reason == "stop" else "length"


def stop_reason(fields: Fields, stop: int | str | None) -> int | str | None:
    """What of the request ended the sample; None where it was the model."""
    return stop if isinstance(stop, str) or stop in (fields.stop_token_ids or ()) else None


def _message(asked: Asked, fields: ChatFields, prompt: Prompt, sample: Sample) -> dict[str, Any]:
    text = sample.text or ""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if not asked.reads_tool_calls or "<tool_call>" not in text:
        return message
    reader = ToolCallReader(prompt.digest)
    parts = [*reader.feed(text), *reader.finish()]
    calls = kept_calls(fields, [part for part in parts if isinstance(part, ToolCall)])
    if calls:
        message["content"] = "".join(part for part in parts if isinstance(part, str)) or None
        message["tool_calls"] = [tool_call(each) for each in calls]
    return message


def kept_calls(fields: ChatFields, calls: list[ToolCall]) -> list[ToolCall]:
    """A client that takes one call at a time gets the first."""
    return calls[:1] if fields.parallel_tool_calls is False else calls


def tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
