"""Reading answers of the chat and completions APIs.

A whole answer and an event of a streamed one have the same outer shape, with `message` or `delta` in each choice.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from ...chat.wire import decoder_of, error_in_stream
from ..calls import Said, Usage
from ..parts import (
    Message,
    Part,
    as_text,
    blob_part,
    dicts,
    reasoning_part,
    refusal_part,
    text_part,
    tool_call_part,
    usage_of,
    weights_version_of,
)

TokenIds = list[Annotated[int, msgspec.Meta(ge=0, le=2**53)]]


class _TokenLogprob(msgspec.Struct, gc=False):
    logprob: float | None = None


class _Logprobs(msgspec.Struct):
    # Of chat.
    content: list[_TokenLogprob] | None = None
    refusal: list[_TokenLogprob] | None = None
    # Of completions.
    token_logprobs: list[float | None] | None = None

    def values(self) -> list[float]:
        tokens = self.content or self.refusal
        found = [token.logprob for token in tokens] if tokens else (self.token_logprobs or [])
        # The first token of an echoed prompt has none.
        return [value for value in found if value is not None] if None in found else found  # type: ignore[return-value]


class _PlainChoice(msgspec.Struct):
    """A choice without its numbers."""

    index: int | None = 0
    delta: Any = None
    message: Any = None
    text: Any = None
    finish_reason: Any = None
    meta_info: Any = None


class _Choice(_PlainChoice):
    logprobs: _Logprobs | None = None
    token_ids: TokenIds | None = None
    prompt_token_ids: TokenIds | None = None
    weights_versions: list[str] | None = None
    """Of each token, where they are not all of one version."""


class _PlainBody(msgspec.Struct):
    choices: list[_PlainChoice] | None = None
    id: Any = None
    model: Any = None
    usage: Any = None
    error: Any = None
    weights_version: Any = None
    weight_version: Any = None
    metadata: Any = None
    meta_info: Any = None
    sglext: Any = None

    def version(self) -> str | None:
        places = (self.metadata, self.meta_info, self.sglext)
        if self.weights_version is None and self.weight_version is None and not any(places):
            return None
        own = {"weights_version": self.weights_version, "weight_version": self.weight_version}
        return weights_version_of(own, *places)


class _Body(_PlainBody):
    choices: list[_Choice] | None = None  # type: ignore[assignment]
    prompt_token_ids: TokenIds | None = None


# Types that are known are read three times as fast, since most of a token's log-probability is never looked at.
_decode = decoder_of(_Body, strict=False)
_decode_plain = decoder_of(_PlainBody, strict=False)


@dataclass(slots=True)
class _ToolCall:
    id: Any = None
    name: Any = None
    kind: str = "function"
    arguments: list[str] = field(default_factory=list)

    def part(self) -> Part:
        part = tool_call_part(self.id, self.name, "".join(self.arguments))
        if self.kind == "custom":
            part["kind"] = "custom"
        return part


@dataclass(slots=True)
class _Told:
    """What is known of one choice so far."""

    role: str = "assistant"
    finish_reason: str | None = None
    reasoning: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    calls: list[_ToolCall] = field(default_factory=list)
    call_at: dict[Any, _ToolCall] = field(default_factory=dict)
    audio: dict[str, list[str]] = field(default_factory=dict)
    prompt_token_ids: list[int] = field(default_factory=list)
    """Told of each choice by completions, which may be of several prompts."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[str, int]] = field(default_factory=list)
    """Versions of the weights, each with how many tokens it sampled; neighbours may be the same."""

    def take(self, delta: dict[str, Any], *, is_whole: bool) -> None:
        content = delta.get("content")
        if isinstance(content, str):
            self.text.append(content)
        elif content:
            self._take_parts(content)
        # Engines have either name; where both are sent they say the same.
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self.reasoning.append(as_text(thought))
        if refusal := delta.get("refusal"):
            self.refusal.append(as_text(refusal))
        if calls := delta.get("tool_calls"):
            for number, call in enumerate(dicts(calls)):
                self._take_call(call, number if is_whole else call.get("index"))
        if isinstance(function := delta.get("function_call"), dict):
            self._fill(self._call_at("function_call"), function)
        if isinstance(audio := delta.get("audio"), dict):
            for key in ("data", "transcript"):
                self.audio.setdefault(key, []).append(as_text(audio.get(key)))

    def _take_parts(self, content: Any) -> None:
        """Some servers write the content as a list."""
        for part in dicts(content):
            if part.get("type") == "thinking":
                thoughts = part.get("thinking")
                self.reasoning += [as_text(thoughts), *(as_text(each.get("text")) for each in dicts(thoughts))]
            else:
                self.text.append(as_text(part.get("text")))

    def _take_call(self, call: dict[str, Any], index: Any) -> None:
        inner = call.get("function") or call.get("custom")
        inner = inner if isinstance(inner, dict) else {}
        if not isinstance(index, int):
            # Without a number, an id begins the next call.
            index = len(self.calls) if call.get("id") or not self.calls else len(self.calls) - 1
        known = self._call_at(index)
        if known.name and inner.get("name") and call.get("id") not in (None, known.id):
            # Some servers give every call the number 0.
            del self.call_at[index]
            known = self._call_at(index)
        known.id = known.id or call.get("id")
        known.kind = "custom" if call.get("type") == "custom" or "custom" in call else known.kind
        self._fill(known, inner)

    def _call_at(self, index: Any) -> _ToolCall:
        if index not in self.call_at:
            self.call_at[index] = _ToolCall()
            self.calls.append(self.call_at[index])
        return self.call_at[index]

    def _fill(self, call: _ToolCall, inner: dict[str, Any]) -> None:
        call.name = call.name or inner.get("name")
        call.arguments.append(_arguments(inner.get("arguments", inner.get("input"))))

    def message(self) -> Message:
        written = ((reasoning_part, self.reasoning), (text_part, self.text), (refusal_part, self.refusal))
        parts = [make(text) for make, pieces in written if (text := "".join(pieces))]
        if self.audio:
            sound = blob_part("audio", None, "".join(self.audio["data"]))
            parts.append({**sound, "transcript": "".join(self.audio["transcript"])})
        parts += [call.part() for call in self.calls]
        message: Message = {"role": self.role, "parts": parts}
        if self.finish_reason is not None:
            message["finish_reason"] = self.finish_reason
        return message


class ChatReader:
    """Merges the events of one answer, or reads it whole."""

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._choices: dict[int, _Told] = {}
        self._said = Said()
        self._is_done = False

    @property
    def is_over(self) -> bool:
        """Not every server ends its stream with the mark; then the choices tell."""
        if self._is_done or not self._choices:
            return self._is_done
        return not self._is_stream or all(told.finish_reason is not None for told in self._choices.values())

    def add(self, data: bytes) -> None:
        if self._is_stream and data == b"[DONE]":
            self._is_done = True
            return
        body: _PlainBody
        try:
            body = _decode(data)
        except msgspec.ValidationError:
            # Numbers of the wrong kind shall not cost the words.
            body = _decode_plain(data)
        self._add_outer(body)
        for choice in body.choices or ():
            self._add_choice(choice, body)

    def _add_outer(self, body: _PlainBody) -> None:
        said = self._said
        if said.response_id is None:
            said.response_id = as_text(body.id) or None
        if said.model is None:
            said.model = as_text(body.model) or None
        if body.usage:
            said.usage = usage_of(body.usage) or said.usage
        if body.error:
            said.error = said.error or error_in_stream(body.error)
        if said.weights_version is None:
            said.weights_version = body.version()
        if isinstance(body, _Body) and body.prompt_token_ids and not said.prompt_token_ids:
            said.prompt_token_ids = body.prompt_token_ids

    def _add_choice(self, choice: _PlainChoice, body: _PlainBody) -> None:
        told = self._choices.setdefault(choice.index or 0, _Told())
        if isinstance(choice.text, str):
            told.text.append(choice.text)
        elif isinstance(choice.delta, dict):
            told.take(choice.delta, is_whole=False)
        elif isinstance(choice.message, dict):
            told.take(choice.message, is_whole=True)
        told.finish_reason = as_text(choice.finish_reason) or told.finish_reason
        if choice.meta_info is not None and self._said.weights_version is None:
            self._said.weights_version = weights_version_of(choice.meta_info)
        if isinstance(choice, _Choice):
            self._add_numbers(told, choice, body)

    def _add_numbers(self, told: _Told, choice: _Choice, body: _PlainBody) -> None:
        if choice.token_ids:
            told.token_ids += choice.token_ids
            self._add_versions(told, choice, body)
        if choice.logprobs is not None:
            told.logprobs += choice.logprobs.values()
        if choice.prompt_token_ids:
            told.prompt_token_ids = choice.prompt_token_ids

    def _add_versions(self, told: _Told, choice: _Choice, body: _PlainBody) -> None:
        """An event tells the version of its own tokens."""
        ids = choice.token_ids or []
        if choice.weights_versions is not None and len(choice.weights_versions) == len(ids):
            told.versions += [(version, 1) for version in choice.weights_versions]
        elif (version := body.version() or self._said.weights_version) is not None:
            told.versions.append((version, len(ids)))

    def said(self) -> Said:
        said = self._said
        choices = [self._choices[index] for index in sorted(self._choices)]
        said.output_messages = [told.message() for told in choices]
        if not said.prompt_token_ids:
            # Of several prompts the first one's, whichever was answered first.
            said.prompt_token_ids = next((told.prompt_token_ids for told in choices if told.prompt_token_ids), [])
        if any(told.token_ids for told in choices):
            said.response_token_ids = [told.token_ids for told in choices]
        if any(told.logprobs for told in choices):
            said.response_logprobs = [_of_response(told) for told in choices]
        if any(version != said.weights_version for told in choices for version, _ in told.versions):
            said.response_weights_versions = [_of_each_token(told) for told in choices]
        if said.usage is None and said.response_token_ids:
            # Not every stream tells its usage; the ids are as good.
            said.usage = Usage(len(said.prompt_token_ids), sum(map(len, said.response_token_ids)))
        return said


def _of_response(told: _Told) -> list[float]:
    """Without those of a prompt that was echoed."""
    surplus = len(told.logprobs) - len(told.token_ids)
    return told.logprobs[surplus:] if told.token_ids and surplus > 0 else told.logprobs


def _of_each_token(told: _Told) -> list[str]:
    return [version for version, count in told.versions for _ in range(count)]


def _arguments(value: Any) -> str:
    """Text, as OpenAI has it; some servers write the object itself."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()
