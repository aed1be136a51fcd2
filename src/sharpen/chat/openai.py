"""Bodies of OpenAI's chat, completions, responses and embeddings APIs, with what engines add to them.

Requests and whole responses are read here; `streams` joins the events of a streamed response into such a whole one.
"""

from typing import Annotated, Any

import msgspec

from .messages import (
    BlobPart,
    Choice,
    FilePart,
    Message,
    ParsedRequest,
    ParsedResponse,
    Part,
    ReasoningPart,
    RefusalPart,
    ServerToolCall,
    TextPart,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    media_part,
    tool_result,
)
from .wire import as_dict, as_text, count, decode, decoder_of, dicts, error_in_stream, weights_version_of

TokenIds = list[Annotated[int, msgspec.Meta(ge=0, le=2**53)]]
_INPUT_ROLES = ("user", "system", "developer")
_LENGTH_REASONS = ("max_output_tokens", "max_tokens")


# -- requests of chat and completions ------------------------------------------------------------------


def read_chat_request(request: dict[str, Any], parsed: ParsedRequest) -> None:
    parsed.messages = [chat_message(message) for message in dicts(request.get("messages"))]
    parsed.tools = [flat_tool(tool) for tool in dicts(request.get("tools"))]
    parsed.tools += [{"type": "function", **function} for function in dicts(request.get("functions"))]


def read_texts_request(request: dict[str, Any], parsed: ParsedRequest) -> None:
    """Read a request of completions or embeddings: each prompt is a message of the user; token ids have no text."""
    texts = request.get("prompt" if parsed.api == "completions" else "input")
    parsed.messages = _user_texts(texts if isinstance(texts, list) else [texts])


def _user_texts(texts: list[Any]) -> list[Message]:
    return [Message("user", [TextPart(text)]) for text in texts if isinstance(text, str)]


def prompt_token_ids(request: dict[str, Any]) -> list[int]:
    """Return the ids of a prompt that the agent tokenised itself; of several prompts the first one's."""
    prompt = request.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
        prompt = prompt[0]
    is_ids = isinstance(prompt, list) and all(type(each) is int for each in prompt)
    return prompt if is_ids and isinstance(prompt, list) else []


def chat_message(message: dict[str, Any]) -> Message:
    """Return one message of a chat request."""
    role, content, name = as_text(message.get("role")) or "user", message.get("content"), message.get("name") or None
    if role == "tool":
        result = content if isinstance(content, str) else tool_result(_contents(content))
        return Message(role, [ToolResult(message.get("tool_call_id"), result)], name)
    if isinstance(content, str) and len(message) == 2:
        # By far the most messages are no more than that.
        return Message(role, [TextPart(content)])
    parts: list[Part] = []
    if thoughts := as_text(message.get("reasoning_content") or message.get("reasoning")):
        parts.append(ReasoningPart(thoughts))
    parts += _contents(content)
    if refusal := as_text(message.get("refusal")):
        parts.append(RefusalPart(refusal))
    parts += [_tool_call(call) for call in dicts(message.get("tool_calls"))]
    if function := as_dict(message.get("function_call")):
        parts.append(ToolCall(None, function.get("name"), function.get("arguments")))
    return Message(role, parts, name)


def _tool_call(call: dict[str, Any]) -> ToolCall:
    inner = as_dict(call.get("function") or call.get("custom"))
    kind = "custom" if call.get("type") == "custom" or "custom" in call else None
    return ToolCall(call.get("id"), inner.get("name"), inner.get("arguments", inner.get("input")), kind)


def _contents(content: Any) -> list[Part]:
    """Return content of the chat or the responses API: a text, or a list of typed entries."""
    if isinstance(content, str):
        return [TextPart(content)]
    return [_content(entry) for entry in dicts(content)]


def _content(entry: dict[str, Any]) -> Part:
    kind = as_text(entry.get("type"))
    match kind:
        case "text" | "input_text" | "output_text":
            return TextPart(as_text(entry.get("text")))
        case "refusal":
            return RefusalPart(as_text(entry.get("refusal")))
        case "image_url" | "video_url" | "audio_url":
            inner = entry.get(kind)
            return media_part(kind.removesuffix("_url"), inner.get("url") if isinstance(inner, dict) else inner)
        case "input_audio":
            sound = as_dict(entry.get("input_audio"))
            return BlobPart("audio", f"audio/{sound.get('format') or 'wav'}", sound.get("data"))
        case "file" | "input_file" | "input_image":
            file = as_dict(entry.get("file")) if kind == "file" else entry
            modality = "image" if kind == "input_image" else "document"
            if file.get("file_id"):
                return FilePart(modality, None, file["file_id"])
            name = as_text(file.get("filename")) or None if kind == "file" else None
            url = file.get("image_url") or file.get("file_data") or file.get("file_url")
            return media_part(modality, url, filename=name)
    return {**entry, "type": kind}


def flat_tool(tool: dict[str, Any]) -> Tool:
    """Return a tool of the chat API with functions flat, as the responses API and the GenAI conventions have them."""
    function = tool.get("function")
    return {"type": "function", **function} if isinstance(function, dict) else tool


# -- responses of chat and completions -----------------------------------------------------------------


class _TokenLogprob(msgspec.Struct, gc=False):
    logprob: float | None = None
    token: Any = None


class _Logprobs(msgspec.Struct):
    # Of chat.
    content: list[_TokenLogprob] | None = None
    refusal: list[_TokenLogprob] | None = None
    # Of completions.
    token_logprobs: list[float | None] | None = None
    tokens: Any = None

    def values(self) -> list[float]:
        tokens = self.content or self.refusal
        found = [token.logprob for token in tokens] if tokens else (self.token_logprobs or [])
        # The first token of an echoed prompt has none.
        return [value for value in found if value is not None]

    def texts(self) -> list[str]:
        tokens = [each.token for each in self.content] if self.content else self.tokens
        return [text for text in tokens if isinstance(text, str)] if isinstance(tokens, list) else []


class ChatChoice(msgspec.Struct):
    index: int | None = 0
    delta: Any = None
    message: Any = None
    text: Any = None
    finish_reason: Any = None
    meta_info: Any = None
    logprobs: _Logprobs | None = None
    token_ids: TokenIds | None = None
    prompt_token_ids: TokenIds | None = None
    weights_versions: list[str] | None = None
    """Of each token, where they are not all of one version."""


class _ChatBody(msgspec.Struct):
    choices: list[ChatChoice] | None = None
    id: Any = None
    model: Any = None
    usage: Any = None
    error: Any = None
    weights_version: Any = None
    weight_version: Any = None
    metadata: Any = None
    meta_info: Any = None
    sglext: Any = None
    prompt_token_ids: TokenIds | None = None


NUMBERS = frozenset(("logprobs", "token_ids", "prompt_token_ids", "weights_versions"))
# Known types are decoded three times as fast, since most of a token's log-probability is never looked at.
_decode_chat = decoder_of(_ChatBody, strict=False)


def _chat_body(data: bytes | dict[str, Any]) -> _ChatBody:
    """Numbers of the wrong kind do not cost the words: then all numbers are left out."""
    try:
        return msgspec.convert(data, _ChatBody, strict=False) if isinstance(data, dict) else _decode_chat(data)
    except msgspec.ValidationError:
        body = decode(data) if isinstance(data, bytes) else data
        return msgspec.convert(_without_numbers(body), _ChatBody, strict=False)


def _without_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_numbers(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if key not in NUMBERS}
    return {**kept, "choices": _without_numbers(kept["choices"])} if "choices" in kept else kept


def read_chat_response(data: bytes | dict[str, Any]) -> ParsedResponse:
    """Read a whole response of chat or completions."""
    body = _chat_body(data)
    choices = sorted(body.choices or (), key=lambda choice: choice.index or 0)
    own = {"weights_version": body.weights_version, "weight_version": body.weight_version}
    places = (own, body.metadata, body.meta_info, body.sglext, *(choice.meta_info for choice in choices))
    found = ParsedResponse(
        id=as_text(body.id) or None,
        model=as_text(body.model) or None,
        usage=usage_of(body.usage),
        error=error_in_stream(body.error) if body.error else None,
        weights_version=weights_version_of(*places),
        is_complete=bool(choices),
    )
    found.choices = [_chat_choice(choice, found.weights_version) for choice in choices]
    found.prompt_token_ids = body.prompt_token_ids or next(
        filter(None, (each.prompt_token_ids for each in choices)), []
    )
    if all(version == found.weights_version for each in found.choices for version in each.weights_versions):
        for choice in found.choices:
            choice.weights_versions = []
    if found.usage is None and any(choice.token_ids for choice in found.choices):
        # Not every server reports its usage; the ids are as good.
        found.usage = Usage(len(found.prompt_token_ids), sum(len(choice.token_ids) for choice in found.choices))
    return found


def _chat_choice(choice: ChatChoice, version: str | None) -> Choice:
    if isinstance(choice.text, str):
        parts: list[Part] = [TextPart(choice.text)] if choice.text else []
    else:
        parts = _answer_parts(as_dict(choice.delta if isinstance(choice.delta, dict) else choice.message))
    found = Choice(Message("assistant", parts, finish_reason=as_text(choice.finish_reason) or None))
    found.token_ids = ids = choice.token_ids or []
    if choice.logprobs is not None:
        found.logprobs, found.token_texts = choice.logprobs.values(), choice.logprobs.texts()
        surplus = len(found.logprobs) - len(ids)
        if ids and surplus > 0:  # those of a prompt that was echoed
            found.logprobs = found.logprobs[surplus:]
    if choice.weights_versions is not None and len(choice.weights_versions) == len(ids):
        found.weights_versions = choice.weights_versions
    elif version is not None:
        found.weights_versions = [version] * len(ids)
    return found


def _answer_parts(message: dict[str, Any]) -> list[Part]:
    """In this order, whatever the server's: thoughts, words, a refusal, sound, tool calls."""
    content, thoughts = message.get("content"), as_text(message.get("reasoning_content") or message.get("reasoning"))
    if not isinstance(content, str):
        content, more = split_content(content)
        thoughts = more + thoughts
    parts: list[Part] = [ReasoningPart(thoughts)] if thoughts else []
    parts += [TextPart(content)] if content else []
    if refusal := as_text(message.get("refusal")):
        parts.append(RefusalPart(refusal))
    if isinstance(sound := message.get("audio"), dict):
        data, words = as_text(sound.get("data")), as_text(sound.get("transcript"))
        parts.append(BlobPart("audio", None, data, transcript=words))
    for call in map(_tool_call, dicts(message.get("tool_calls"))):
        parts.append(ToolCall(call.id, call.name, arguments_text(call.arguments), call.kind))
    if isinstance(function := message.get("function_call"), dict):
        parts.append(ToolCall(None, function.get("name"), arguments_text(function.get("arguments"))))
    return parts


def split_content(content: Any) -> tuple[str, str]:
    """Return the words and the thoughts of content that a server writes as a list of entries."""
    words, thoughts = "", ""
    for entry in dicts(content):
        if entry.get("type") == "thinking":
            inner = entry.get("thinking")
            thoughts += as_text(inner) + "".join(as_text(each.get("text")) for each in dicts(inner))
        else:
            words += as_text(entry.get("text"))
    return words, thoughts


def arguments_text(value: Any) -> str:
    """Return arguments as text, as OpenAI has them; some servers write the object itself."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def usage_of(value: Any) -> Usage | None:
    """Return the tokens as OpenAI's APIs count them."""
    if not isinstance(value, dict) or not value:
        return None
    details = as_dict(value.get("prompt_tokens_details") or value.get("input_tokens_details"))
    return Usage(
        count(value.get("prompt_tokens", value.get("input_tokens"))),
        count(value.get("completion_tokens", value.get("output_tokens"))),
        count(details.get("cached_tokens")),
    )


# -- the responses API ---------------------------------------------------------------------------------


def read_responses_request(request: dict[str, Any], parsed: ParsedRequest) -> None:
    """The assistant's items that follow each other are one message: its thoughts, its words and its tool calls."""
    if instructions := as_text(request.get("instructions")):
        parsed.instructions = [TextPart(instructions)]
    parsed.tools = dicts(request.get("tools"))
    items = request.get("input")
    messages = parsed.messages = _user_texts([items])
    for item in dicts(items):
        role = as_text(item.get("role"))
        if not role:
            role = "tool" if as_text(item.get("type")).endswith("_output") else "assistant"
        parts = _contents(item.get("content") or []) if role in _INPUT_ROLES else item_parts(item)
        if role == "assistant" and messages and messages[-1].role == role:
            messages[-1].parts.extend(parts)
        else:
            messages.append(Message(role, parts))


def read_responses_response(body: dict[str, Any]) -> ParsedResponse:
    items = dicts(body.get("output"))
    entries = [entry for item in items for entry in dicts(item.get("content"))]
    tokens = [each for entry in entries for each in dicts(entry.get("logprobs"))]
    tokens = [each for each in tokens if isinstance(each.get("logprob"), int | float)]
    reason = _finish_reason(body, items)
    choice = Choice(
        Message("assistant", [part for item in items for part in item_parts(item)], finish_reason=reason),
        token_ids_of(body.get("token_ids")) or token_ids_of(body.get("output_token_ids")),
        [float(each["logprob"]) for each in tokens],
        [text for each in tokens if isinstance(text := each.get("token"), str)],
    )
    return ParsedResponse(
        id=as_text(body.get("id")) or None,
        model=as_text(body.get("model")) or None,
        choices=[choice] if items or reason else [],
        usage=usage_of(body.get("usage")),
        prompt_token_ids=token_ids_of(body.get("prompt_token_ids")),
        weights_version=weights_version_of(body, body.get("metadata"), body.get("sglext")),
        error=error_in_stream(body) if body.get("error") else None,
        is_complete=isinstance(body.get("output"), list),
    )


def _finish_reason(body: dict[str, Any], items: list[dict[str, Any]]) -> str | None:
    """In the words of the chat API, since this one has none of its own."""
    status = body.get("status")
    if status == "completed":
        has_calls = any(item.get("type") in ("function_call", "custom_tool_call") for item in items)
        return "tool_calls" if has_calls else "stop"
    if status == "incomplete":
        reason = as_text(as_dict(body.get("incomplete_details")).get("reason"))
        return "length" if reason in _LENGTH_REASONS else reason or "length"
    return "error" if status == "failed" else None


def token_ids_of(value: Any) -> list[int]:
    """Return a list of token ids; nothing for any other value."""
    is_ids = isinstance(value, list) and all(type(each) is int and 0 <= each <= 2**53 for each in value)
    return value if is_ids else []


def item_parts(item: dict[str, Any]) -> list[Part]:
    """Return an item of a request or of a response as parts of a message."""
    kind, get = as_text(item.get("type")) or "message", item.get
    match kind:
        case "message":
            return _contents(get("content") or [])
        case "reasoning":
            entries = dicts(get("content")) or dicts(get("summary"))
            return [ReasoningPart(text) for entry in entries if (text := as_text(entry.get("text")))]
        case "function_call":
            return [ToolCall(get("call_id"), get("name"), as_text(get("arguments")))]
        case "custom_tool_call":
            return [ToolCall(get("call_id"), get("name"), as_text(get("input")), "custom")]
        case "function_call_output" | "custom_tool_call_output":
            output = get("output")
            response = output if isinstance(output, str) else tool_result(_contents(output))
            return [ToolResult(get("call_id"), response)]
        case "item_reference" | "compaction":
            return [{"type": kind, "id": get("id")}]
    return [ServerToolCall(get("id"), kind, item)]


# -- embeddings: what they cost and how long a vector is; the vectors are left out ---------------------


class _Vector(msgspec.Struct):
    embedding: msgspec.Raw = msgspec.Raw(b"")


class _Embeddings(msgspec.Struct):
    data: list[_Vector] | None = None
    id: Any = None
    model: Any = None
    usage: Any = None
    error: Any = None
    weights_version: Any = None
    weight_version: Any = None


_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode


def read_embeddings_response(data: bytes) -> ParsedResponse:
    body = _decode_embeddings(data)
    own = {"weights_version": body.weights_version, "weight_version": body.weight_version}
    return ParsedResponse(
        id=as_text(body.id) or None,
        model=as_text(body.model) or None,
        usage=usage_of(body.usage),
        weights_version=weights_version_of(own),
        dimensions=_dimensions(bytes(body.data[0].embedding)) if body.data else None,
        error=error_in_stream(body.error) if body.error else None,
        is_complete=body.data is not None,
    )


def _dimensions(vector: bytes) -> int | None:
    """The length of a vector that is a list of numbers, or their 32-bit floats as base64."""
    if vector[:1] == b"[":
        return vector.count(b",") + 1 if vector.strip(b"[] \n\r\t") else 0
    if vector[:1] == b'"':
        return len(vector.strip(b'"').rstrip(b"=")) * 3 // 4 // 4
    return None
