"""The attributes of a span that tell of a model call: written from a request and its response, and read back.

Two ways of writing messages are read. The current GenAI conventions, and the gateway, keep a list of messages, each
with typed parts, as JSON in one attribute. The older conventions, and AgentOps, write every leaf as an attribute of its
own (`gen_ai.prompt.0.content`).
"""

import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from ..semconv import LightningLLMAttributes
from ..types import Attributes, Span
from .messages import (
    Message,
    ParsedRequest,
    ParsedResponse,
    Part,
    ReasoningPart,
    Tool,
    ToolResult,
    openai_tool,
    parts_of,
    tool_call_of,
)
from .wire import dicts, is_secret, json_text, mended, without_secrets

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
INSTRUCTIONS, TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
OPERATION = "gen_ai.operation.name"
FLAT_INPUT, FLAT_OUTPUT = "gen_ai.prompt", "gen_ai.completion"
FLAT_TOOLS = ("llm.request.functions", "gen_ai.request.functions", "gen_ai.request.tools")

_log = logging.getLogger(__name__)
# Plain strings: an enum's member as a key costs ten times as much.
_OURS = {each.name: each.value for each in LightningLLMAttributes}
_SAMPLING = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "n": "gen_ai.request.choice.count",
    "stop": "gen_ai.request.stop_sequences",
}
_OPERATIONS = {"completions": "text_completion", "embeddings": "embeddings"}
# More than any recorder writes; a key made only of dots must not become a tree without end.
_MAX_DEPTH = 8
_CONTENT_TYPES = {"text", "image_url", "input_audio", "file", "refusal"}


# -- writing -------------------------------------------------------------------------------------------


def request_attributes(request: ParsedRequest, *, capture_content: bool = True) -> Attributes:
    """Return what a span says of a request; without `capture_content` only its numbers and names."""
    found: Attributes = {OPERATION: _OPERATIONS.get(request.api, "chat"), "gen_ai.request.model": request.model}
    for name, key in _SAMPLING.items():
        if (value := getattr(request.sampling, name)) is not None:
            found[key] = value
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


# -- reading -------------------------------------------------------------------------------------------


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
    return [_message(item, role) for item in dicts(items)]


def _message(item: Mapping[str, Any], role: str) -> Message:
    parts = parts_of(item.get("parts"))
    content = msgspec.UNSET if parts else item.get("content", msgspec.UNSET)
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
