"""Scripted answers in the words of Anthropic's messages API."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .replies import Reply, Words, sse, tokens_of, words_for
from .replies_openai import usage_of

Request = Mapping[str, Any]


def messages_words(request: Request, reply: Reply) -> Words:
    last = request["messages"][-1]
    tools = [
        {"name": each["name"], "schema": each["input_schema"]}
        for each in request.get("tools") or []
        if "input_schema" in each
    ]
    choice = request.get("tool_choice") or {}
    if choice.get("type") == "tool":
        tools = [each for each in tools if each["name"] == choice["name"]]
    elif _is_result(last) or choice.get("type") == "none":
        tools = []
    return words_for(reply, request, last=_text(last["content"]), tools=tools)


def _is_result(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(part.get("type") == "tool_result" for part in content)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or _text(part.get("content")) for part in content)
    return content or ""


def _blocks(words: Words) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if words.reasoning is not None:
        blocks.append({"type": "thinking", "thinking": words.reasoning, "signature": f"signed-{words.id}"})
    if words.text is not None or words.refusal is not None:
        blocks.append({"type": "text", "text": words.text or words.refusal})
    for number, (name, arguments) in enumerate(words.tool_calls):
        blocks.append({"type": "tool_use", "id": f"toolu_{words.id}_{number}", "name": name, "input": arguments})
    return blocks


def _stop_reason(words: Words) -> str:
    usual = "tool_use" if words.tool_calls else "refusal" if words.refusal is not None else "end_turn"
    return words.finish_reason or usual


def _head(request: Request, words: Words) -> dict[str, Any]:
    return {"id": f"msg_{words.id}", "type": "message", "role": "assistant", "model": request["model"]}


def messages_whole(request: Request, reply: Reply) -> dict[str, Any]:
    words = messages_words(request, reply)
    counted = usage_of(request, words)
    usage = {"input_tokens": counted["prompt_tokens"], "output_tokens": counted["completion_tokens"]}
    said = {"content": _blocks(words), "stop_reason": _stop_reason(words), "stop_sequence": None}
    return {**_head(request, words), **said, "usage": usage}


def messages_stream(request: Request, reply: Reply) -> Iterator[bytes]:
    for event in _events(request, messages_words(request, reply)):
        yield sse(event, event["type"])


def _events(request: Request, words: Words) -> Iterator[dict[str, Any]]:
    counted = usage_of(request, words)
    opening = {"content": [], "stop_reason": None, "stop_sequence": None}
    usage = {"input_tokens": counted["prompt_tokens"], "output_tokens": 1}
    yield {"type": "message_start", "message": {**_head(request, words), **opening, "usage": usage}}
    yield {"type": "ping"}
    for index, block in enumerate(_blocks(words)):
        yield {"type": "content_block_start", "index": index, "content_block": _empty(block)}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": _stop_reason(words), "stop_sequence": None}
    yield {"type": "message_delta", "delta": ending, "usage": {"output_tokens": counted["completion_tokens"]}}
    yield {"type": "message_stop"}


def _empty(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, **{"text": {"text": ""}, "tool_use": {"input": {}}, "thinking": _NO_THOUGHT}[block["type"]]}


_NO_THOUGHT = {"thinking": "", "signature": ""}


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": token} for token in tokens_of(block["text"]))
    elif block["type"] == "tool_use":
        pieces = tokens_of(json.dumps(block["input"]))
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces])
    else:
        yield from ({"type": "thinking_delta", "thinking": token} for token in tokens_of(block["thinking"]))
        yield {"type": "signature_delta", "signature": block["signature"]}
