"""Messages between an agent and a model as data, in the parts of OpenTelemetry's GenAI conventions.

The JSON of a message is exactly what a span's `gen_ai.input.messages` and `gen_ai.output.messages` hold. A part of an
unknown type stays the dict that it was.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from .wire import dicts, json_text

Api = Literal["chat", "completions", "responses", "embeddings", "messages"]
Tool = dict[str, Any]
"""A tool; functions are flat: `{"type": "function", "name": …, "parameters": …}`."""
OpenAIMessage = dict[str, Any]


class TextPart(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    content: str


class ReasoningPart(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="reasoning"):
    """What a model thought before its answer."""

    content: str


class RefusalPart(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="refusal"):
    content: str


class ToolCall(msgspec.Struct, frozen=True, tag_field="type", tag="tool_call", omit_defaults=True):
    """A tool that a model asks for. Arguments stay as they were sampled: text in OpenAI's APIs, an object in
    Anthropic's. `kind` is "custom" for tools whose input is not JSON."""

    id: Any
    name: Any
    arguments: Any
    kind: str | None = None

    @property
    def arguments_text(self) -> str:
        """The arguments as text, in the form of OpenAI's APIs; without any, an empty object."""
        if self.arguments is None:
            return "" if self.kind == "custom" else "{}"
        return json_text(self.arguments)


class ToolResult(msgspec.Struct, frozen=True, tag_field="type", tag="tool_call_response", omit_defaults=True):
    """What a tool returned: text, parts, or any JSON."""

    id: Any
    response: Any
    is_error: bool = False


class UriPart(msgspec.Struct, frozen=True, tag_field="type", tag="uri", omit_defaults=True):
    """An image, a sound, a film or a document, by its address."""

    modality: Any
    mime_type: Any
    uri: Any
    filename: Any = None


class BlobPart(msgspec.Struct, frozen=True, tag_field="type", tag="blob", omit_defaults=True):
    """The same by its bytes, in base64."""

    modality: Any
    mime_type: Any
    content: Any
    filename: Any = None
    transcript: str | None = None


class FilePart(msgspec.Struct, frozen=True, tag_field="type", tag="file"):
    """The same by the id of a file that the provider keeps."""

    modality: Any
    mime_type: Any
    file_id: Any


class ServerToolCall(msgspec.Struct, frozen=True, tag_field="type", tag="server_tool_call"):
    """A tool that the provider ran itself."""

    id: Any
    name: Any
    server_tool_call: Any


class ServerToolResult(msgspec.Struct, frozen=True, tag_field="type", tag="server_tool_call_response"):
    id: Any
    server_tool_call_response: Any


Part: TypeAlias = (
    TextPart
    | ReasoningPart
    | RefusalPart
    | ToolCall
    | ToolResult
    | UriPart
    | BlobPart
    | FilePart
    | ServerToolCall
    | ServerToolResult
    | dict[str, Any]
)


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `content` is set where a recorder kept the content in OpenAI's own form instead of parts."""

    role: str
    parts: list[Part]
    name: Any = None
    finish_reason: str | None = None
    content: Any | UnsetType = UNSET

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]

    @property
    def result(self) -> ToolResult | None:
        """The first result of a tool."""
        return next((part for part in self.parts if isinstance(part, ToolResult)), None)

    @property
    def reasoning(self) -> str | None:
        found = [part.content for part in self.parts if isinstance(part, ReasoningPart)]
        return "\n".join(found) if found else None

    @property
    def refusal(self) -> str:
        return "".join(part.content for part in self.parts if isinstance(part, RefusalPart))


class Sampling(msgspec.Struct, omit_defaults=True):
    """How a request wants its answer sampled; None where it does not say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    max_tokens: float | None = None
    seed: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    n: float | None = None
    stop: list[str] | None = None


class ParsedRequest(msgspec.Struct):
    """A request of any API. What is malformed in it is left out."""

    api: Api
    model: str = ""
    instructions: list[Part] = []
    """A system prompt that stands beside the messages."""
    messages: list[Message] = []
    tools: list[Tool] = []
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    is_stream: bool = False
    output_type: str | None = None
    """"json" or "speech" where the answer should not be plain text."""
    prompt_token_ids: list[int] = []
    """Of a prompt that the agent tokenised itself; of several prompts the first one's."""
    previous_response_id: str | None = None
    encoding_format: str | None = None
    dimensions: float | None = None
    """Of the embeddings that are asked for."""
    other: dict[str, Any] = {}
    """Every other field, as it is; it may hold keys."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call as the server counted them; cached ones are among those of the input."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class Choice(msgspec.Struct):
    """One answer. The lists have an entry for each sampled token, or are empty."""

    message: Message
    token_ids: list[int] = []
    logprobs: list[float] = []
    token_texts: list[str] = []
    weights_versions: list[str] = []
    """Only where the tokens of the response are not all of one version."""


class ParsedResponse(msgspec.Struct):
    """A response of any API, whole or joined from a stream."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] = []
    usage: Usage | None = None
    prompt_token_ids: list[int] = []
    weights_version: str | None = None
    """Of the first token."""
    dimensions: int | None = None
    """Of embeddings."""
    error: str | None = None
    """Why it is not a whole answer: an error of the server, malformed JSON, a cut stream."""
    is_complete: bool = True

    @property
    def messages(self) -> list[Message]:
        return [choice.message for choice in self.choices]

    @property
    def finish_reasons(self) -> list[str]:
        return [reason for message in self.messages if (reason := message.finish_reason)]

    @property
    def has_begun(self) -> bool:
        """Return True if anything was sampled."""
        has_tokens = self.usage is not None and self.usage.output_tokens > 0
        return has_tokens or any(message.parts for message in self.messages)


def media_part(modality: str, url: Any, *, filename: str | None = None) -> Part:
    """Return a part for an address, or for the bytes of a `data:` URL."""
    if isinstance(url, str) and url.startswith("data:"):
        head, _, content = url.partition(",")
        return BlobPart(modality, head[5:].partition(";")[0] or None, content, filename)
    return UriPart(modality, None, url, filename)


def tool_result(parts: list[Part]) -> Any:
    """Return what a tool answered: its text, or its parts where it is more than text."""
    texts = [part.content for part in parts if isinstance(part, TextPart)]
    return "".join(texts) if len(texts) == len(parts) else parts


# -- the form of OpenAI's chat API ---------------------------------------------------------------------


def results_apart(messages: Iterable[Message]) -> Iterator[Message]:
    """Give each result of a tool a message of role "tool", as OpenAI has it, before the rest of its message."""
    for message in messages:
        if message.content is not UNSET or not any(isinstance(part, ToolResult) for part in message.parts):
            yield message
            continue
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        yield from (Message("tool", [part]) for part in results)
        rest = [part for part in message.parts if not isinstance(part, ToolResult)]
        if rest:
            yield msgspec.structs.replace(message, parts=rest)


def openai_message(message: Message) -> OpenAIMessage:
    """Return a message of `results_apart` as the chat API has it; what that API has no place for is left out."""
    if len(message.parts) == 1 and message.content is UNSET and not message.name:
        # By far the most messages are no more than a text or a result.
        match message.parts[0]:
            case TextPart(content=text):
                return {"role": message.role, "content": text}
            case ToolResult(id=call_id, response=response):
                return {"role": message.role, "tool_call_id": call_id, "content": _result_content(response)}
    found: OpenAIMessage = {"role": message.role, "content": openai_content(message)}
    if (result := message.result) is not None:
        found["tool_call_id"] = result.id
    if (reasoning := message.reasoning) is not None:
        found["reasoning_content"] = reasoning
    calls = [_openai_tool_call(call) for call in message.tool_calls]
    extras = {"name": message.name, "refusal": message.refusal, "tool_calls": calls}
    return found | {key: value for key, value in extras.items() if value}


def openai_content(message: Message) -> Any:
    """Return the content of `openai_message`: a text, a list of typed entries, or None beside calls and refusals."""
    if message.content is not UNSET:
        return message.content
    if (result := message.result) is not None:
        return _result_content(result.response)
    contents = openai_contents(message.parts)
    return joined(contents) if contents or message.tool_calls or message.refusal else ""


def openai_contents(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [content for part in parts if (content := _content_entry(part)) is not None]


def joined(contents: list[dict[str, Any]]) -> Any:
    """Return a single text as a plain string, as people write it, and None for no content."""
    if not contents:
        return None
    return contents[0]["text"] if len(contents) == 1 and contents[0]["type"] == "text" else contents


def openai_tool(tool: Mapping[str, Any]) -> Tool:
    """Return a tool as the chat API has it: functions nested, the provider's own tools as they are."""
    if "function" in tool or tool.get("type", "function") != "function":
        return dict(tool)
    keys = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {key: tool[key] for key in keys if tool.get(key) is not None}}


def content_text(content: Any) -> str:
    """Return content of the chat API for people: texts as they are, and of other entries only what they are."""
    if isinstance(content, list):
        return "\n".join(_entry_text(entry) for entry in content)
    return "" if content is None else json_text(content)


def _entry_text(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return "" if entry is None else json_text(entry)
    for key in ("text", "refusal"):
        if isinstance(entry.get(key), str):
            return str(entry[key])
    kind = str(entry.get("type") or "part")
    inner = entry.get(kind)
    url = inner.get("url") if isinstance(inner, Mapping) else inner
    is_address = isinstance(url, str) and not url.startswith("data:")
    return f"[{kind.removesuffix('_url')}: {url}]" if is_address else f"[{kind.removesuffix('_url')}]"


def _content_entry(part: Part) -> dict[str, Any] | None:
    match part:
        case TextPart(content=text):
            return {"type": "text", "text": text}
        case UriPart(modality="image") | BlobPart(modality="image"):
            return {"type": "image_url", "image_url": {"url": _url(part, "image/png")}}
        case BlobPart(modality="audio"):
            sound = str(part.mime_type or "audio/wav").rpartition("/")[2]
            return {"type": "input_audio", "input_audio": {"data": part.content, "format": sound}}
        case UriPart(modality="video") | BlobPart(modality="video"):
            return {"type": "video_url", "video_url": {"url": _url(part, "video/mp4")}}
        case BlobPart(modality="document"):
            names = {"filename": part.filename} if part.filename else {}
            return {"type": "file", "file": {**names, "file_data": _url(part, "application/pdf")}}
        case FilePart():
            return {"type": "file", "file": {"file_id": part.file_id}}
    return None


def _url(part: UriPart | BlobPart, default_type: str) -> Any:
    if isinstance(part, UriPart):
        return part.uri
    return f"data:{part.mime_type or default_type};base64,{part.content}"


def _result_content(response: Any) -> Any:
    """Text, the entries that the result is made of, or JSON."""
    if isinstance(response, list) and response:
        parts = [part_of(each) if isinstance(each, dict) else each for each in response]
        if all(isinstance(each, TextPart | UriPart | BlobPart | FilePart) for each in parts):
            return joined(openai_contents(parts))
    return json_text(msgspec.to_builtins(response, enc_hook=str))


def _openai_tool_call(call: ToolCall) -> dict[str, Any]:
    if call.kind == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments_text}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}}


# -- recorded parts ------------------------------------------------------------------------------------


def part_of(item: Mapping[str, Any]) -> Part:
    """Return a part from its JSON; fields that a recorder left out are None, and an unknown type stays a dict."""
    get = item.get
    match get("type"):
        case "text":
            return TextPart(str(get("content") or ""))
        case "reasoning":
            return ReasoningPart(str(get("content") or ""))
        case "refusal":
            return RefusalPart(str(get("content") or ""))
        case "tool_call":
            return tool_call_of(item)
        case "tool_call_response":
            return ToolResult(get("id"), get("response", get("result")), get("is_error") is True)
        case "uri":
            return UriPart(get("modality"), get("mime_type"), get("uri"), get("filename"))
        case "blob":
            more = get("transcript")
            return BlobPart(get("modality"), get("mime_type"), get("content"), get("filename"), more)
        case "file":
            return FilePart(get("modality"), get("mime_type"), get("file_id"))
        case "server_tool_call":
            return ServerToolCall(get("id"), get("name"), get("server_tool_call"))
        case "server_tool_call_response":
            return ServerToolResult(get("id"), get("server_tool_call_response"))
    return dict(item)


def tool_call_of(item: Mapping[str, Any]) -> ToolCall:
    """Return a recorded tool call, flat or with its name and arguments in `function`."""
    inner = item.get("function")
    function = inner if isinstance(inner, dict) else item
    kind = "custom" if item.get("kind") == "custom" else None
    return ToolCall(item.get("id"), function.get("name"), function.get("arguments"), kind)


def parts_of(items: Any) -> list[Part]:
    return [part_of(item) for item in dicts(items)]
