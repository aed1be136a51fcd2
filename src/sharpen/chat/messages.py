"""Messages between an agent and a model as data, in OpenAI's chat format, and in the attributes of a span.

Parts are those of OpenTelemetry's GenAI conventions: the JSON of a message is exactly what a span's
`gen_ai.input.messages` and `gen_ai.output.messages` hold. A part of an unknown type stays the dict that it was.

Two ways of writing messages into a span are read. The current conventions, and the gateway, keep a list of messages,
each with typed parts, as JSON in one attribute. The older conventions, and AgentOps, write every leaf as an attribute
of its own (`gen_ai.prompt.0.content`). `request_attributes` and `response_attributes` are for the gateway's recorder.
"""

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from ..semconv import LightningLLMAttributes
from ..types import Attributes, Span
from .wire import as_text, dicts, is_secret, json_text, mended, without_secrets

Api = Literal["chat", "completions", "responses", "embeddings", "messages"]
Tool = dict[str, Any]
"""A tool; functions are flat: `{"type": "function", "name": …, "parameters": …}`."""
OpenAIMessage = dict[str, Any]

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
INSTRUCTIONS, TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
OPERATION = "gen_ai.operation.name"
FLAT_INPUT, FLAT_OUTPUT = "gen_ai.prompt", "gen_ai.completion"
FLAT_TOOLS = ("llm.request.functions", "gen_ai.request.functions", "gen_ai.request.tools")

_log = logging.getLogger(__name__)
# Plain strings: an enum's member as a key costs ten times as much.
_OURS = {each.name: each.value for each in LightningLLMAttributes}
_OPERATIONS = {"completions": "text_completion", "embeddings": "embeddings"}
# More than any recorder writes; a key made only of dots must not become a tree without end.
_MAX_DEPTH = 8
_CONTENT_TYPES = {"text", "image_url", "input_audio", "file", "refusal"}


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


_KnownPart: TypeAlias = (
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
)
if TYPE_CHECKING:
    Part: TypeAlias = _KnownPart | dict[str, Any]
else:  # msgspec has no union of structs and dicts, but converts messages of known parts at once
    Part = _KnownPart
_PARTS: dict[Any, Any] = {part.__struct_config__.tag: part for part in _KnownPart.__args__}


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
        results = [part for part in message.parts if type(part) is ToolResult]
        if not results or message.content is not UNSET:
            yield message
            continue
        yield from (Message("tool", [part]) for part in results)
        rest = [part for part in message.parts if type(part) is not ToolResult]
        if rest:
            yield msgspec.structs.replace(message, parts=rest)


def openai_message(message: Message) -> OpenAIMessage:
    """Return a message of `results_apart` as the chat API has it; what that API has no place for is left out."""
    if len(message.parts) == 1 and message.content is UNSET and not message.name:
        # By far the most messages are no more than a text, a call or a result.
        part = message.parts[0]
        if type(part) is TextPart:
            return {"role": message.role, "content": part.content}
        if type(part) is ToolResult:
            return {"role": message.role, "tool_call_id": part.id, "content": _result_content(part.response)}
        if type(part) is ToolCall:
            return {"role": message.role, "content": None, "tool_calls": [_openai_tool_call(part)]}
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
    if isinstance(response, str):
        return response
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
    part = _PARTS.get(as_text(item.get("type")))
    if part is None:
        return dict(item)
    if part is ToolCall:
        return tool_call_of(item)
    if part is ToolResult:
        return ToolResult(item.get("id"), item.get("response", item.get("result")), item.get("is_error") is True)
    values = [item.get(name) for name in part.__struct_fields__]
    found: Part = part(str(values[0] or "")) if len(values) == 1 else part(*values)
    return found


def tool_call_of(item: Mapping[str, Any]) -> ToolCall:
    """Return a recorded tool call, flat or with its name and arguments in `function`."""
    inner = item.get("function")
    function = inner if isinstance(inner, dict) else item
    kind = "custom" if item.get("kind") == "custom" else None
    return ToolCall(item.get("id"), function.get("name"), function.get("arguments"), kind)


def parts_of(items: Any) -> list[Part]:
    return [part_of(item) for item in dicts(items)]


# -- written into the attributes of a span -------------------------------------------------------------

_SAMPLING = {"n": "gen_ai.request.choice.count", "stop": "gen_ai.request.stop_sequences"}


def request_attributes(request: ParsedRequest, *, capture_content: bool = True) -> Attributes:
    """Return what a span says of a request; without `capture_content` only its numbers and names."""
    found: Attributes = {OPERATION: _OPERATIONS.get(request.api, "chat"), "gen_ai.request.model": request.model}
    for name, value in zip(Sampling.__struct_fields__, msgspec.structs.astuple(request.sampling), strict=True):
        if value is not None:
            found[_SAMPLING.get(name) or f"gen_ai.request.{name}"] = value
    optional = {
        "gen_ai.request.stream": request.is_stream or None,
        "gen_ai.request.encoding_formats": None if request.encoding_format is None else [request.encoding_format],
        "gen_ai.output.type": request.output_type,
        "gen_ai.embeddings.dimension.count": request.dimensions,
        _OURS["API"]: request.api,
        _OURS["PREVIOUS_RESPONSE_ID"]: request.previous_response_id,
    }
    found |= {key: value for key, value in optional.items() if value is not None}
    if capture_content:
        other = {key: without_secrets(value) for key, value in request.other.items() if not is_secret(key)}
        tools = [tool if tool.get("type") == "function" else without_secrets(tool) for tool in request.tools]
        content = {INPUT: request.messages, INSTRUCTIONS: request.instructions, TOOLS: tools}
        content[_OURS["PARAMETERS"]] = other
        found |= {key: to_json(value) for key, value in content.items() if value}
        if request.prompt_token_ids:
            found[_OURS["PROMPT_TOKEN_IDS"]] = request.prompt_token_ids
    return found


def response_attributes(response: ParsedResponse, *, capture_content: bool = True) -> Attributes:
    """Return what a span says of a response; without `capture_content` only its numbers and names."""
    usage = response.usage
    optional: dict[str, Any] = {
        "gen_ai.response.id": response.id,
        "gen_ai.response.model": response.model,
        "gen_ai.response.finish_reasons": response.finish_reasons or None,
        "gen_ai.usage.input_tokens": None if usage is None else usage.input_tokens,
        "gen_ai.usage.output_tokens": None if usage is None else usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": None if usage is None else usage.cached_tokens or None,
        "gen_ai.embeddings.dimension.count": response.dimensions,
        _OURS["WEIGHTS_VERSION"]: response.weights_version,
        _OURS["IS_COMPLETE"]: None if response.is_complete else False,
    }
    if capture_content:
        # A stream that was cut before its first word has said nothing.
        if any(message.parts or response.is_complete for message in response.messages):
            optional[OUTPUT] = to_json(response.messages)
        optional |= {
            _OURS["ERROR"]: response.error,
            _OURS["PROMPT_TOKEN_IDS"]: response.prompt_token_ids or None,
            _OURS["RESPONSE_TOKEN_IDS"]: _by_choice([each.token_ids for each in response.choices]),
            _OURS["RESPONSE_LOGPROBS"]: _by_choice([each.logprobs for each in response.choices]),
            _OURS["WEIGHTS_VERSIONS"]: _by_choice([each.weights_versions for each in response.choices]),
        }
    return {key: value for key, value in optional.items() if value is not None}


def to_json(value: Any) -> str:
    """Return messages, parts or other values as the JSON of an attribute."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(mended(msgspec.to_builtins(value))).decode()


def _by_choice(lists: list[list[Any]]) -> Any:
    """A span's attribute is a flat list; of several choices it is JSON."""
    if not any(lists):
        return None
    return lists[0] if len(lists) == 1 else to_json(lists)


# -- read from the attributes of a span ----------------------------------------------------------------


def read_json(span: Span, key: str) -> Any:
    """Return the value of an attribute, parsed where it is JSON; None where it is missing or cut off."""
    value = span.attributes.get(key)
    if not isinstance(value, str):
        return value
    with contextlib.suppress(msgspec.DecodeError, UnicodeEncodeError):
        return msgspec.json.decode(value)
    try:
        return json.loads(value)  # it also takes half characters, and numbers that are not finite
    except ValueError as error:
        # A limit on the length of attributes cuts JSON in its middle: one lost call, not a lost run.
        _log.warning("attribute %s of span %s (%r) is not JSON; ignoring it: %s", key, span.span_id, span.name, error)
        return None


def read_messages(items: Any, *, role: str) -> list[Message]:
    """Read messages of typed parts; `role` is for those without one."""
    try:
        found = msgspec.convert(items or [], list[Message])
    except msgspec.ValidationError:  # a part of an unknown type, or one that another recorder has written
        return [_message(item, role) for item in dicts(items)]
    is_plain = all(each.role not in ("", "model") and (each.content is UNSET or not each.parts) for each in found)
    return found if is_plain else [_message(item, role) for item in dicts(items)]


def _message(item: Mapping[str, Any], role: str) -> Message:
    parts = parts_of(item.get("parts"))
    content = UNSET if parts else item.get("content", UNSET)
    reason = item.get("finish_reason")
    return Message(_role(item, role), parts, item.get("name") or None, reason if reason else None, content)


def read_flat_messages(items: Any, *, role: str) -> list[Message]:
    """Read messages that `read_flat` found."""
    return [_flat_message(item, role) for item in dicts(items)]


def _flat_message(item: Mapping[str, Any], role: str) -> Message:
    calls: list[Part] = [tool_call_of(call) for call in dicts(item.get("tool_calls"))]
    call_id, thoughts = item.get("tool_call_id"), item.get("reasoning_content")
    # AgentOps leaves out the role of some earlier turns.
    role = "assistant" if calls else "tool" if call_id else role
    content = _flat_content(item.get("content"))
    parts: list[Part] = [ReasoningPart(str(thoughts))] if thoughts else []
    if call_id:
        parts.append(ToolResult(call_id, content))
    shown = content or (None if calls else "")
    return Message(_role(item, role), parts + calls, item.get("name") or None, content=shown)


def _role(item: Mapping[str, Any], default: str) -> str:
    role = str(item.get("role") or default)
    return "assistant" if role == "model" else role


def _flat_content(content: Any) -> Any:
    """Content of several parts is written as JSON; anything else is the text itself."""
    if not isinstance(content, str) or not content.startswith("["):
        return content if content is None or isinstance(content, str | list) else json_text(content)
    try:
        parts = json.loads(content)
    except ValueError:
        return content
    is_parts = parts and all(isinstance(part, dict) and part.get("type") in _CONTENT_TYPES for part in parts)
    return parts if is_parts else content


def read_tools(items: Any) -> list[Tool]:
    """Read tools, of either way of writing, in the form of OpenAI's chat API."""
    return [_with_schema(openai_tool(item)) for item in dicts(items)]


def _with_schema(tool: Tool) -> Tool:
    """The older conventions write the schema of a function as JSON."""
    function = tool.get("function")
    if isinstance(function, dict) and isinstance(text := function.get("parameters"), str):
        try:
            return {**tool, "function": {**function, "parameters": json.loads(text)}}
        except ValueError:
            return tool
    return tool


def read_flat(attributes: Attributes, prefix: str) -> list[dict[str, Any]]:
    """Return the list that was written as `prefix.0.name`, `prefix.0.items.0.name`, …; numbers are its order."""
    tree: dict[str, Any] = {}
    start = f"{prefix}."
    for key, value in attributes.items():
        if key.startswith(start):
            _put(tree, key.removeprefix(start).split(".", _MAX_DEPTH), value)
    # Beside the list there may be other things, such as `gen_ai.prompt.prompt_filter_results`.
    numbered = {key: value for key, value in tree.items() if key.isdecimal()}
    return dicts(_with_lists(numbered)) if numbered else []


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        below = tree.get(part)
        if not isinstance(below, dict):
            below = tree[part] = {}
        tree = below
    if not isinstance(tree.get(path[-1]), dict):
        tree[path[-1]] = value


def _with_lists(value: Any) -> Any:
    """Dicts whose keys are all numbers are lists."""
    if not isinstance(value, dict):
        return value
    if value and all(map(str.isdecimal, value)):
        return [_with_lists(value[key]) for key in sorted(value, key=int)]
    return {key: _with_lists(below) if isinstance(below, dict) else below for key, below in value.items()}
