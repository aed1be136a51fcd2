"""Whole answers, as JSON in the shape of OpenAI's APIs with vLLM's names for token ids; the texts of single tokens."""

import functools
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ..engine import Generation, Sample
from ..engine.request import TopLogprobs
from .prompts import Prompt
from .requests import ChatFields, CompletionFields, Fields
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

    def __init__(self, texts: "TokenTexts") -> None:
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


# -- texts of single tokens ---------------------------------------------------------------------------


_encode = msgspec.json.Encoder().encode
_BROKEN = "\ufffd"
_NOTHING = msgspec.Raw(b'{"content":[],"refusal":null}')


class TokenTexts:
    """Of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        anchor = tokenizer("a", add_special_tokens=False)["input_ids"]
        self._anchor: list[int] = list(anchor)
        self._anchor_text = self._decoded(self._anchor)
        self._texts: dict[int, str] = {}
        self._heads = _Heads(self)

    def text(self, token_id: int) -> str:
        """What the token adds to a text; a part of a character is a mark of replacement."""
        found = self._texts.get(token_id)
        if found is None:
            # After another token, since decoders drop a space at the beginning.
            whole, start = self._decoded([*self._anchor, token_id]), self._anchor_text
            found = whole[len(start) :] if whole.startswith(start) else self._decoded([token_id])
            self._texts[token_id] = found
        return found

    def raw(self, token_id: int) -> list[int] | None:
        """The bytes of the token, None where they are not known."""
        text = self.text(token_id)
        if _BROKEN not in text:
            return list(text.encode())
        written = self._tokenizer.convert_ids_to_tokens(token_id)
        if written.startswith("<0x") and written.endswith(">"):
            return [int(written[3:-1], 16)]
        known = _byte_of_letter()
        return [known[each] for each in written] if all(each in known for each in written) else None

    def chat_logprobs(self, ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[TopLogprobs]) -> msgspec.Raw:
        """`logprobs` of a choice of chat."""
        heads = map(self.head, ids, tops) if tops else map(self._heads.__getitem__, ids)
        if not logprobs:
            return _NOTHING
        tokens = map(operator.add, heads, _encode(logprobs)[1:-1].split(b","))
        return msgspec.Raw(b'{"content":[%s}],"refusal":null}' % b"},".join(tokens))

    def completion_logprobs(
        self, ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[TopLogprobs], *, offset: int = 0
    ) -> dict[str, Any]:
        """`logprobs` of a choice of completions; `offset` is where its text begins."""
        texts = [self.text(each) for each in ids]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        likeliest = [{self._name(token): number for token, number in top} for top in tops] or None
        names = [self._name(each) for each in ids]
        return {"tokens": names, "token_logprobs": logprobs, "top_logprobs": likeliest, "text_offset": offsets}

    def head(self, token_id: int, top: TopLogprobs = ()) -> bytes:
        """The JSON of a token up to its number."""
        likeliest = [{**self._told(each), "logprob": number} for each, number in top]
        return _encode({**self._told(token_id), "top_logprobs": likeliest})[:-1] + b',"logprob":'

    def _name(self, token_id: int) -> str:
        """Its text; of a part of a character its bytes, as this API spells them."""
        text, raw = self.text(token_id), self.raw(token_id)
        return text if _BROKEN not in text or raw is None else "bytes:" + "".join(f"\\x{each:02x}" for each in raw)

    def _told(self, token_id: int) -> dict[str, Any]:
        return {"token": self.text(token_id), "bytes": self.raw(token_id)}

    def _decoded(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


class _Heads(dict[int, bytes]):
    """Made when they are first needed."""

    def __init__(self, texts: "TokenTexts") -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, token_id: int) -> bytes:
        head = self[token_id] = self._texts.head(token_id)
        return head


@functools.cache
def _byte_of_letter() -> dict[str, int]:
    """The letters by which byte-level vocabularies write bytes: printable ones as they are, the others from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), 256)]
    others = [each for each in range(256) if each not in set(plain)]
    return {chr(each): each for each in plain} | {chr(256 + place): each for place, each in enumerate(others)}
