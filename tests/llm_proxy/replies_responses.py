"""Scripted answers in the words of OpenAI's responses API."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .replies import CREATED, Reply, Words, sse, tokens_of, words_for
from .replies_openai import usage_of

Request = Mapping[str, Any]


def responses_words(request: Request, reply: Reply) -> Words:
    asked = request["input"]
    last = {"content": asked} if isinstance(asked, str) else asked[-1]
    functions = [each for each in request.get("tools") or [] if each.get("type") == "function"]
    tools = [{"name": each["name"], "schema": each.get("parameters") or {"type": "object"}} for each in functions]
    if last.get("type") == "function_call_output" or request.get("tool_choice") == "none":
        tools = []
    return words_for(reply, request, last=_text(last.get("content") or last.get("output")), tools=tools)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _message(words: Words, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": f"msg_{words.id}", "type": "message", "role": "assistant", "status": status, "content": content}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _items(words: Words) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if words.reasoning is not None:
        summary = [{"type": "summary_text", "text": words.reasoning}]
        items.append({"id": f"rs_{words.id}", "type": "reasoning", "summary": summary})
    if words.refusal is not None:
        items.append(_message(words, [{"type": "refusal", "refusal": words.refusal}], "completed"))
    elif words.text is not None:
        items.append(_message(words, [_text_part(words.text)], "completed"))
    return items + [_call(words, number) for number in range(len(words.tool_calls))]


def _call(words: Words, number: int) -> dict[str, Any]:
    name, arguments = words.tool_calls[number]
    call = {"id": f"fc_{words.id}_{number}", "type": "function_call", "call_id": words.call_id(number)}
    return {**call, "name": name, "arguments": json.dumps(arguments), "status": "completed"}


def _body(request: Request, words: Words, *, output: list[dict[str, Any]], status: str) -> dict[str, Any]:
    body = {"id": f"resp_{words.id}", "object": "response", "created_at": CREATED, "status": status}
    body |= {"error": None, "incomplete_details": None, "instructions": request.get("instructions")}
    body |= {"model": request["model"], "output": output, "parallel_tool_calls": True, "temperature": 1.0}
    body |= {"tool_choice": request.get("tool_choice") or "auto", "tools": request.get("tools") or [], "top_p": 1.0}
    body |= {"text": request.get("text") or {"format": {"type": "text"}}, "metadata": request.get("metadata") or {}}
    return body | {"usage": _usage(request, words) if status != "in_progress" else None}


def _usage(request: Request, words: Words) -> dict[str, Any]:
    counted = usage_of(request, words)
    usage: dict[str, Any] = {"input_tokens": counted["prompt_tokens"], "output_tokens": counted["completion_tokens"]}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return usage | {"total_tokens": counted["total_tokens"]}


def _ending(words: Words) -> tuple[str, dict[str, Any]]:
    """The last status, and what it adds to the response."""
    if words.finish_reason == "length":
        return "incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}
    return "completed", {}


def responses_whole(request: Request, reply: Reply) -> dict[str, Any]:
    words = responses_words(request, reply)
    status, more = _ending(words)
    return _body(request, words, output=_items(words), status=status) | more


def responses_stream(request: Request, reply: Reply) -> Iterator[bytes]:
    words = responses_words(request, reply)
    for number, event in enumerate(_events(request, words)):
        yield sse({**event, "sequence_number": number}, event["type"])


def _events(request: Request, words: Words) -> Iterator[dict[str, Any]]:
    started = _body(request, words, output=[], status="in_progress")
    yield {"type": "response.created", "response": started}
    yield {"type": "response.in_progress", "response": started}
    for index, item in enumerate(_items(words)):
        yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
        yield from _item_events(index, item)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    status, more = _ending(words)
    yield {"type": f"response.{status}", "response": _body(request, words, output=_items(words), status=status) | more}


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    empty: dict[str, Any] = {"message": {"content": []}, "function_call": {"arguments": ""}, "reasoning": {}}
    return {**item, **empty[item["type"]], "status": "in_progress"}


def _item_events(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    place = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        for piece in tokens_of(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **place, **done}
    elif item["type"] == "message":
        yield from _part_events({**place, "content_index": 0}, item["content"][0])


def _part_events(place: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = part["type"]
    text = part.get("text") or part.get("refusal") or ""
    more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
    key = "text" if kind == "output_text" else "refusal"
    yield {"type": "response.content_part.added", **place, "part": {**part, key: ""}}
    for token in tokens_of(text):
        yield {"type": f"response.{kind}.delta", **place, "delta": token, **more}
    yield {"type": f"response.{kind}.done", **place, key: text, **more}
    yield {"type": "response.content_part.done", **place, "part": part}
