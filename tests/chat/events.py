"""Whole responses written as the events of a stream, as few as clients need to read it."""

from collections.abc import Iterator
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event_bytes(data: Any, name: str | None = None) -> bytes:
    """Return one server-sent event; `data` is JSON already, or is encoded."""
    body = data if isinstance(data, bytes) else _encode(data)
    return b"data: %b\n\n" % body if name is None else b"event: %b\ndata: %b\n\n" % (name.encode(), body)


def events_of(api: str, body: dict[str, Any]) -> Iterator[bytes]:
    """Write a whole response as the events of a stream, as few as clients need to read it."""
    if api in ("chat", "completions"):
        yield from _chat_events(body)
        yield DONE
        return
    write = _message_events if api == "messages" else _response_events
    for event in write(body):
        yield event_bytes(event, event["type"])


def _chat_events(body: dict[str, Any]) -> Iterator[bytes]:
    """Each choice is one chunk with all that was said, and one with its end."""
    head = {key: value for key, value in body.items() if key not in ("choices", "usage")}
    if head.get("object") == "chat.completion":
        head["object"] = "chat.completion.chunk"
    for choice in body.get("choices") or []:
        end = {"index": choice.get("index", 0), "finish_reason": choice.get("finish_reason")}
        if "text" in choice:
            yield event_bytes({**head, "choices": [choice]})
            continue
        delta = dict(choice.get("message") or {})
        if calls := (delta.get("tool_calls") or []):
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        said = {key: value for key, value in choice.items() if key != "message"}
        yield event_bytes({**head, "choices": [{**said, "delta": delta, "finish_reason": None}]})
        yield event_bytes({**head, "choices": [{**end, "delta": {}}]})
        head.pop("prompt_token_ids", None)
    if body.get("usage"):
        yield event_bytes({**head, "choices": [], "usage": body["usage"]})


def _message_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    ends = {"stop_reason": body.get("stop_reason"), "stop_sequence": body.get("stop_sequence")}
    start = {**body, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(body.get("content") or []):
        empty, deltas = _block_deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": ends, "usage": (body.get("usage") or {})}
    yield {"type": "message_stop"}


def _block_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and what its deltas add."""
    match block.get("type"):
        case "text":
            deltas: list[dict[str, Any]] = [{"type": "text_delta", "text": block.get("text")}]
            deltas += [{"type": "citations_delta", "citation": each} for each in block.get("citations") or ()]
            return block | {"text": ""} | ({"citations": []} if block.get("citations") else {}), deltas
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": block.get("thinking")}]
            deltas += [{"type": "signature_delta", "signature": block["signature"]}] if block.get("signature") else []
            return block | {"thinking": "", "signature": ""}, deltas
        case "tool_use" | "server_tool_use":
            text = _encode(block.get("input")).decode()
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    return block, []


def _response_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    start = body | {"status": "in_progress", "output": [], "usage": None}
    events += [{"type": "response.created", "response": start}, {"type": "response.in_progress", "response": start}]
    for index, item in enumerate(body.get("output") or []):
        events += _item_events(item, {"output_index": index, "item_id": item.get("id")})
    status = body.get("status")
    end = f"response.{status}" if status in ("incomplete", "failed") else "response.completed"
    events.append({"type": end, "response": body})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _item_events(item: dict[str, Any], place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    index = {"output_index": place["output_index"]}
    kind = item.get("type")
    empty: dict[str, dict[str, Any]] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "custom_tool_call": {"input": ""},
    }
    started = item | empty.get(str(kind), {}) | ({"status": "in_progress"} if "status" in item else {})
    yield {"type": "response.output_item.added", **index, "item": started}
    if kind == "message":
        for number, entry in enumerate(item.get("content") or []):
            at, key = {**place, "content_index": number}, "refusal" if entry.get("type") == "refusal" else "text"
            event = "response.refusal" if key == "refusal" else "response.output_text"
            more = {"logprobs": entry.get("logprobs") or []} if key == "text" else {}
            yield {"type": "response.content_part.added", **at, "part": entry | {key: ""}}
            yield {"type": f"{event}.delta", **at, "delta": (entry.get(key) or ""), **more}
            yield {"type": f"{event}.done", **at, key: (entry.get(key) or ""), **more}
            yield {"type": "response.content_part.done", **at, "part": entry}
    elif kind in ("function_call", "custom_tool_call"):
        event, key = ("function_call_arguments", "arguments")
        if kind == "custom_tool_call":
            event, key = ("custom_tool_call_input", "input")
        text = item.get(key) or ""
        yield {"type": f"response.{event}.delta", **place, "delta": text}
        yield {"type": f"response.{event}.done", **place, key: text, "name": item.get("name")}
    yield {"type": "response.output_item.done", **index, "item": item}
