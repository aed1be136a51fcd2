"""Prompts as token ids: chat messages through the chat template, texts through the tokenizer.

Writing and tokenising a prompt costs more than everything else about a request, and the members of a group ask with the
same one. So prompts are kept by the bytes that asked for them.
"""

import functools
import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from ...errors import ConfigError, describe
from ...web.app import HttpError
from .requests import ChatFields, CompletionFields, invalid_field

log = logging.getLogger(__name__)

MAX_KEPT_TOKENS = 500_000
MAX_PROMPTS = 1024
# Of the template's own call: a request must not replace the template, or what is done with its text.
_RESERVED = frozenset(
    {"conversation", "messages", "tools", "chat_template", "tokenize", "sanitize_control_tokens", "padding",
     "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
     "add_generation_prompt", "continue_final_message"}
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


class Prompt:
    """The token ids of a prompt; it is shared, so nobody changes it."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    @functools.cached_property
    def json(self) -> msgspec.Raw:
        return msgspec.Raw(_encode(self.ids))

    @functools.cached_property
    def digest(self) -> bytes:
        """Equal for equal prompts, in every process."""
        return blake2b(array("q", self.ids).tobytes(), digest_size=16).digest()


class PromptWriter:
    """Turns what a request says into prompts. `template_kwargs` go to the chat template of every request."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._template_kwargs = dict(template_kwargs or {})
        if reserved := sorted(_RESERVED & self._template_kwargs.keys()):
            raise ConfigError(f"chat_template_kwargs has {reserved[0]!r}, which the server sets itself: remove it")
        self._kept: OrderedDict[object, Prompt] = OrderedDict()
        self._num_kept_tokens = 0
        self._has_told_of_tools = False

    def of_chat(self, fields: ChatFields) -> Prompt:
        """The prompt of chat messages, up to where the assistant begins to speak."""
        flags = (fields.add_generation_prompt, fields.continue_final_message)
        tools = b"null" if fields.tool_choice == "none" else bytes(fields.tools)
        key = (bytes(fields.messages), tools, _encode(fields.chat_template_kwargs), flags)
        return self._kept_or(key, lambda: self._chat_ids(fields, tools))

    def of_completion(self, fields: CompletionFields) -> list[Prompt]:
        """One prompt, or several."""
        prompt = fields.prompt
        if isinstance(prompt, str):
            return [self._of_text(prompt, fields)]
        if not prompt:
            raise invalid_field("prompt", "prompt is an empty list: send a string or token ids")
        if _are_ids(prompt):
            return [self._of_ids(prompt)]
        if len(prompt) > MAX_PROMPTS:
            raise invalid_field("prompt", f"prompt contains {len(prompt)} prompts: send at most {MAX_PROMPTS}")
        return [self._of_one(each, place, fields) for place, each in enumerate(prompt)]

    def _of_one(self, prompt: Any, place: int, fields: CompletionFields) -> Prompt:
        if isinstance(prompt, str):
            return self._of_text(prompt, fields)
        if isinstance(prompt, list) and prompt and _are_ids(prompt):
            return self._of_ids(prompt)
        raise invalid_field(
            "prompt", f"prompt[{place}] is {prompt!r:.80}: send a string, token ids, or a list of either"
        )

    def _of_ids(self, ids: list[int]) -> Prompt:
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            bad = next(each for each in ids if not 0 <= each < self._vocab_size)
            raise invalid_field(
                "prompt", f"prompt contains the token id {bad}, but the model's ids are 0 to {self._vocab_size - 1}"
            )
        return Prompt(ids)

    def _of_text(self, text: str, fields: CompletionFields) -> Prompt:
        if not text:
            raise invalid_field("prompt", "prompt is an empty string: send at least one character")
        adds = fields.add_special_tokens is not False
        return self._kept_or((text, adds), lambda: list(self._tokenizer(text, add_special_tokens=adds)["input_ids"]))

    def _chat_ids(self, fields: ChatFields, raw_tools: bytes) -> list[int]:
        if not getattr(self._tokenizer, "chat_template", None):
            raise HttpError(
                400,
                "the model has no chat template, so it cannot read chat messages: use /v1/completions, or an "
                "instruction-tuned model",
                code="no_chat_template",
            )
        messages, tools = read_messages(fields.messages), read_tools(raw_tools)
        if tools is not None:
            self._check_writes_tools()
        goes_on = bool(fields.continue_final_message)
        begins = not goes_on if fields.add_generation_prompt is None else fields.add_generation_prompt
        if goes_on and begins:
            raise invalid_field(
                "add_generation_prompt", "add_generation_prompt and continue_final_message cannot both be true"
            )
        try:
            return list(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=tools,
                    tokenize=True,
                    return_dict=False,
                    add_generation_prompt=begins,
                    continue_final_message=goes_on,
                    **self._kwargs_of(fields),
                )
            )
        except HttpError:
            raise
        except Exception as error:  # A template is a program of the model's maker: it may raise anything.
            raise invalid_field(
                "messages", f"the chat template cannot format these messages: {describe(error)}"
            ) from error

    def _check_writes_tools(self) -> None:
        if not self._has_told_of_tools and "tools" not in str(self._tokenizer.chat_template):
            self._has_told_of_tools = True
            log.warning(
                "a request has tools, but the chat template ignores them, so the model never sees them (logged once)"
            )

    def _kwargs_of(self, fields: ChatFields) -> dict[str, Any]:
        given = fields.chat_template_kwargs or {}
        if reserved := sorted(_RESERVED & given.keys()):
            raise invalid_field(
                "chat_template_kwargs", f"chat_template_kwargs has {reserved[0]!r}, which a request cannot set"
            )
        return self._template_kwargs | given

    def _kept_or(self, key: object, ids_of: Callable[[], list[int]]) -> Prompt:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        prompt = Prompt(ids_of())
        if not prompt.ids:
            raise HttpError(400, "the prompt has no tokens: send a longer one", code="invalid_value")
        self._kept[key] = prompt
        self._num_kept_tokens += len(prompt.ids)
        while self._num_kept_tokens > MAX_KEPT_TOKENS and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._num_kept_tokens -= len(oldest.ids)
        return prompt


def _are_ids(values: list[Any]) -> bool:
    return all(type(each) is int for each in values)


# -- chat messages, as chat templates want them -------------------------------------------------------


_TEXT_PARTS = ("text", "input_text", "output_text")
_decode_messages = msgspec.json.Decoder(list[dict[str, Any]]).decode
_decode_tools = msgspec.json.Decoder(list[dict[str, Any]] | None).decode


def read_messages(raw: bytes) -> list[dict[str, Any]]:
    """The messages, checked, or a refusal that names the first that is wrong."""
    try:
        messages = _decode_messages(raw)
    except msgspec.ValidationError:
        raise invalid_field(
            "messages", "messages is not a list of objects: send [{'role': 'user', 'content': '…'}]"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_field("messages", f"messages is not valid JSON: {error}", code="malformed_json") from None
    if not messages:
        raise invalid_field("messages", "messages is empty: send at least one message")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def read_tools(raw: bytes) -> list[dict[str, Any]] | None:
    """The tools; None where there are none."""
    try:
        tools = _decode_tools(raw)
    except msgspec.ValidationError:
        raise invalid_field(
            "tools", "tools is not a list of objects: send [{'type': 'function', 'function': {…}}]"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_field("tools", f"tools is not valid JSON: {error}", code="malformed_json") from None
    for place, tool in enumerate(tools or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict) or not function.get("name"):
            raise invalid_field(
                "tools", f"tools[{place}] is {tool!r:.80}: send {{'type': 'function', 'function': {{'name': …}}}}"
            )
    return tools or None


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _wrong(f"{where}.role is {role!r}: send a string such as 'user'")
    # Templates know the role under its older name only.
    found = {**message, "role": "system" if role == "developer" else role}
    found["content"] = _text(message.get("content"), message, where)
    if message.get("tool_calls"):
        found["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    else:
        found.pop("tool_calls", None)
    return found


def _text(content: Any, message: dict[str, Any], where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if message.get("role") == "assistant":
            return ""
        raise _wrong(f"{where} has no content: send a string")
    if not isinstance(content, list):
        raise _wrong(f"{where}.content is {content!r:.80}: send a string, or a list of text parts")
    return "\n".join(_part(part, f"{where}.content[{place}]") for place, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise _wrong(f"{where} is {part!r:.80}: send {{'type': 'text', 'text': '…'}}")
    if part.get("type") not in _TEXT_PARTS:
        raise HttpError(
            400,
            f"{where} has type {part.get('type')!r:.40}, but this server accepts text only",
            code="unsupported_value",
            param="messages",
        )
    if not isinstance(part.get("text"), str):
        raise _wrong(f"{where}.text is {part.get('text')!r:.80}: send a string")
    text: str = part["text"]
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise _wrong(f"{where} is {calls!r:.80}: send a list")
    return [_tool_call(call, f"{where}[{place}]") for place, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(f"{where} is {call!r:.80}: send {{'type': 'function', 'function': {{'name': …}}}}")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Any:
    """As an object: templates write it as JSON, and a text would be quoted once more."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments  # it was sampled like this


def _wrong(message: str) -> HttpError:
    return invalid_field("messages", message)
