"""LLM calls as chat messages in OpenAI's format, from what the GenAI conventions record.

The current conventions keep a list of messages, each with typed parts, as JSON in one attribute. The older ones write
every leaf as an attribute of its own (`gen_ai.prompt.0.content`). AgentOps does so too, but records the tool calls of
an answer as spans below the call, and leaves out an earlier answer that was given back as the client's own object.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .attributes import read_flat
from .calls import LLMCall
from .tree import SpanNode

Message = dict[str, Any]
Tool = dict[str, Any]

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
INSTRUCTIONS, TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
_FLAT_INPUT, _FLAT_OUTPUT = "gen_ai.prompt", "gen_ai.completion"
_FLAT_TOOLS = ("llm.request.functions", "gen_ai.request.functions", "gen_ai.request.tools")
# Parts that the result of a tool can be made of.
_RESULT_TYPES = {"text", "uri", "blob", "file"}
_CONTENT_TYPES = {"text", "image_url", "input_audio", "file", "refusal"}


def prompt_messages(call: LLMCall) -> list[Message]:
    """What the model was given, with the conversation that the API remembered."""
    system = _contents(_list(call.read(INSTRUCTIONS)))
    opening: list[Message] = [{"role": "system", "content": _joined(system)}] if system else []
    return opening + _remembered(call) + _input_messages(call)


def _input_messages(call: LLMCall) -> list[Message]:
    found = [message for item in _list(call.read(INPUT)) for message in _from_parts(item, "user")]
    return found or _with_lost_answers(call, [_from_flat(item, "user") for item in _flat(call, _FLAT_INPUT)])


def _remembered(call: LLMCall) -> list[Message]:
    """Questions and answers before the call, from the first; instructions are not remembered."""
    chain: list[LLMCall] = []
    earlier = call.previous
    while earlier is not None and earlier is not call and earlier not in chain:
        chain.append(earlier)
        earlier = earlier.previous
    return [message for each in reversed(chain) for message in _input_messages(each) + response_messages(each)[:1]]


def response_messages(call: LLMCall) -> list[Message]:
    """What the model answered: one message for each choice."""
    found = [message for item in _list(call.read(OUTPUT)) for message in _from_parts(item, "assistant")]
    return found or [_from_flat(item, "assistant") for item in _with_tool_spans(call, _flat(call, _FLAT_OUTPUT))]


def tools(call: LLMCall) -> list[Tool] | None:
    """The tools that the model could call."""
    found = _list(call.read(TOOLS)) or next(filter(None, (_flat(call, prefix) for prefix in _FLAT_TOOLS)), [])
    return [_tool(item) for item in found] or None


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _flat(call: LLMCall, prefix: str) -> list[dict[str, Any]]:
    return next(filter(None, (_list(read_flat(span.attributes, prefix)) for span in call.spans)), [])


# -- messages of typed parts -------------------------------------------------------------------------


def _from_parts(item: Mapping[str, Any], default_role: str) -> Iterator[Message]:
    """One recorded message; results of tools become messages of their own, as OpenAI has them."""
    parts = _list(item.get("parts"))
    results = [part for part in parts if part.get("type") == "tool_call_response"]
    rest = [part for part in parts if part.get("type") != "tool_call_response"]
    for part in results:
        yield {"role": "tool", "tool_call_id": part.get("id"), "content": _result(part)}
    if rest or not results:
        yield _message(item, default_role, rest)


def _result(part: Mapping[str, Any]) -> Any:
    """What a tool answered: text, the parts it is made of, or JSON."""
    response = part.get("response", part.get("result"))
    found = _list(response)
    is_parts = bool(found) and all(each.get("type") in _RESULT_TYPES for each in found)
    return _joined(_contents(found)) if is_parts and len(found) == len(response) else _text(response)


def _message(item: Mapping[str, Any], default_role: str, parts: Iterable[Mapping[str, Any]]) -> Message:
    parts = list(parts)
    calls = [_tool_call(part) for part in parts if part.get("type") == "tool_call"]
    thoughts = [str(part.get("content")) for part in parts if part.get("type") == "reasoning"]
    contents = _contents(parts)
    message: Message = {"role": _role(item, default_role), "content": _joined(contents) if contents or calls else ""}
    if not parts and "content" in item:
        message["content"] = item["content"]
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    refusal = "".join(str(part.get("content") or "") for part in parts if part.get("type") == "refusal")
    if refusal and not contents:
        message["content"] = None
    return _with_extras(message, name=item.get("name"), refusal=refusal, tool_calls=calls)


def _role(item: Mapping[str, Any], default: str) -> str:
    role = str(item.get("role") or default)
    return "assistant" if role == "model" else role


def _with_extras(message: Message, **extras: Any) -> Message:
    return {**message, **{key: value for key, value in extras.items() if value}}


def _contents(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [content for part in parts if (content := _content(part)) is not None]


def _content(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """One part as OpenAI writes it; what its format has no place for is left out."""
    kind, modality = part.get("type"), part.get("modality")
    if kind == "text":
        return {"type": "text", "text": str(part.get("content") or "")}
    if kind in ("uri", "blob") and modality == "image":
        return {"type": "image_url", "image_url": {"url": _url(part, "image/png")}}
    if kind == "blob" and modality == "audio":
        sound = str(part.get("mime_type") or "audio/wav").rpartition("/")[2]
        return {"type": "input_audio", "input_audio": {"data": part.get("content"), "format": sound}}
    if kind in ("uri", "blob") and modality == "video":
        return {"type": "video_url", "video_url": {"url": _url(part, "video/mp4")}}
    if kind == "blob" and modality == "document":
        names = {"filename": part["filename"]} if part.get("filename") else {}
        return {"type": "file", "file": {**names, "file_data": _url(part, "application/pdf")}}
    if kind == "file":
        return {"type": "file", "file": {"file_id": part.get("file_id")}}
    return None


def _url(part: Mapping[str, Any], default_type: str) -> Any:
    """The address, or the bytes as one."""
    if part.get("type") == "uri":
        return part.get("uri")
    return f"data:{part.get('mime_type') or default_type};base64,{part.get('content')}"


def _joined(contents: list[dict[str, Any]]) -> Any:
    """A single text is a plain string, as people write it."""
    if not contents:
        return None
    return contents[0]["text"] if len(contents) == 1 and contents[0]["type"] == "text" else contents


# -- messages with an attribute for each leaf --------------------------------------------------------


def _from_flat(item: Mapping[str, Any], default_role: str) -> Message:
    calls = [_tool_call(call) for call in _list(item.get("tool_calls"))]
    # AgentOps leaves out the role of some earlier turns.
    default_role = "assistant" if calls else "tool" if item.get("tool_call_id") else default_role
    content = _flat_content(item.get("content"))
    message: Message = {"role": _role(item, default_role), "content": content if content or calls else ""}
    if calls and not content:
        message["content"] = None
    extras = {key: item.get(key) for key in ("name", "tool_call_id", "reasoning_content")}
    return _with_extras(message, tool_calls=calls, **extras)


def _flat_content(content: Any) -> Any:
    """Content of several parts is written as JSON; anything else is the text itself."""
    if not isinstance(content, str) or not content.startswith("["):
        return content if content is None or isinstance(content, str | list) else _text(content)
    try:
        parts = json.loads(content)
    except ValueError:
        return content
    is_parts = parts and all(isinstance(part, dict) and part.get("type") in _CONTENT_TYPES for part in parts)
    return parts if is_parts else content


def _with_tool_spans(call: LLMCall, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers with the tool calls that AgentOps records as spans.

    The spans do not say which of several choices they belong to: they go to the only one that ended with tool calls.
    """
    called = list(_tool_spans(call, call.node))
    if not called or any("tool_calls" in answer for answer in answers):
        return answers
    answers = answers or [{}]
    places = [number for number, answer in enumerate(answers) if answer.get("finish_reason") == "tool_calls"]
    if len(answers) > 1 and len(places) != 1:
        return answers
    place = places[0] if places else 0
    return [*answers[:place], {**answers[place], "tool_calls": called}, *answers[place + 1 :]]


def _with_lost_answers(call: LLMCall, messages: list[Message]) -> list[Message]:
    """Before the result of a tool stands the answer that called it; where it was not recorded, as it was given."""
    found: list[Message] = []
    known: set[Any] = set()
    for message in messages:
        wanted = message.get("tool_call_id")
        lost = None if wanted is None or wanted in known else _answer_with(call, wanted)
        found += [message] if lost is None else [lost, message]
        known |= {each["id"] for part in found[-2:] for each in part.get("tool_calls", ())}
    return found


def _answer_with(call: LLMCall, tool_call_id: Any) -> Message | None:
    earlier = call.before
    while earlier is not None:
        if any(each["id"] == tool_call_id for each in _tool_spans(earlier, earlier.node)):
            return next((each for each in response_messages(earlier) if "tool_calls" in each), None)
        earlier = earlier.before
    return None


def _tool_spans(call: LLMCall, node: SpanNode) -> Iterator[dict[str, Any]]:
    """Below the span of the call, or below another view of the same call."""
    for child in node.children:
        attributes = child.span.attributes
        if "tool.call.id" in attributes and attributes.get("tool.name"):
            arguments = attributes.get("tool.parameters")
            yield {"id": attributes["tool.call.id"], "name": attributes["tool.name"], "arguments": arguments or None}
        elif child.span in call.spans:
            yield from _tool_spans(call, child)


# -- tools -------------------------------------------------------------------------------------------


def _tool_call(part: Mapping[str, Any]) -> dict[str, Any]:
    inner = part.get("function")
    function = inner if isinstance(inner, dict) else part
    arguments = function.get("arguments")
    if part.get("kind") == "custom":
        called = {"name": part.get("name"), "input": "" if arguments is None else _text(arguments)}
        return {"id": part.get("id"), "type": "custom", "custom": called}
    called = {"name": function.get("name"), "arguments": "{}" if arguments is None else _text(arguments)}
    return {"id": part.get("id"), "type": "function", "function": called}


def _tool(item: Mapping[str, Any]) -> Tool:
    if "function" in item or item.get("type", "function") != "function":
        return dict(item)
    function = {key: item[key] for key in ("name", "description", "parameters", "strict") if item.get(key) is not None}
    if isinstance(function.get("parameters"), str):
        function["parameters"] = _parsed(function["parameters"])
    return {"type": "function", "function": function}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    """Text as it is; everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
