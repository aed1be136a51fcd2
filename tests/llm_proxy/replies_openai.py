"""Scripted answers in the words of OpenAI's chat completions, completions and embeddings, with vLLM's token ids."""

import array
import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from .replies import CREATED, Reply, Words, logprob_of, prompt_text, sse, token_ids_of, tokens_of, words_for

Request = Mapping[str, Any]


def chat_words(request: Request, reply: Reply) -> Words:
    last = request["messages"][-1]
    functions = [each["function"] for each in request.get("tools") or [] if each.get("type") == "function"]
    tools = [{"name": each["name"], "schema": each.get("parameters") or {"type": "object"}} for each in functions]
    choice = request.get("tool_choice")
    if isinstance(choice, dict):
        tools = [each for each in tools if each["name"] == choice["function"]["name"]]
    elif last["role"] == "tool" or choice == "none":
        tools = []
    return words_for(reply, request, last=_text(last.get("content")), tools=tools)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _sampled(words: Words) -> str:
    """All that the model sampled, as one text."""
    calls = [f" {name} {json.dumps(arguments)}" for name, arguments in words.tool_calls]
    return (words.reasoning or "") + (words.text or words.refusal or "") + "".join(calls)


def usage_of(request: Request, words: Words, *, choices: int = 1) -> dict[str, Any]:
    asked, said = len(tokens_of(prompt_text(request))), len(tokens_of(_sampled(words))) * choices
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _finish(words: Words) -> str:
    return words.finish_reason or ("tool_calls" if words.tool_calls else "stop")


def _tool_calls(words: Words) -> list[dict[str, Any]]:
    return [
        {
            "id": words.call_id(number),
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(words.tool_calls)
    ]


def _chat_logprobs(text: str) -> dict[str, Any]:
    entries = [
        {"token": token, "logprob": logprob_of(token), "bytes": list(token.encode()), "top_logprobs": []}
        for token in tokens_of(text)
    ]
    return {"content": entries, "refusal": None}


def chat_whole(request: Request, reply: Reply, *, has_token_ids: bool) -> dict[str, Any]:
    words = chat_words(request, reply)
    wants_ids = has_token_ids and request.get("return_token_ids") is True
    choices = []
    for index in range(request.get("n") or 1):
        message: dict[str, Any] = {"role": "assistant", "content": words.text, "refusal": words.refusal}
        if words.reasoning is not None:
            message["reasoning_content"] = words.reasoning
        if words.tool_calls:
            message["tool_calls"] = _tool_calls(words)
        logprobs = _chat_logprobs(_sampled(words)) if request.get("logprobs") else None
        choice = {"index": index, "message": message, "logprobs": logprobs, "finish_reason": _finish(words)}
        choices.append(choice | ({"token_ids": token_ids_of(_sampled(words))} if wants_ids else {}))
    body = {"id": f"chatcmpl-{words.id}", "object": "chat.completion", "created": CREATED, "model": request["model"]}
    body |= {"choices": choices, "usage": usage_of(request, words, choices=len(choices))}
    return body | ({"prompt_token_ids": token_ids_of(prompt_text(request))} if wants_ids else {})


def chat_stream(request: Request, reply: Reply, *, has_token_ids: bool) -> Iterator[bytes]:
    words = chat_words(request, reply)
    wants_ids = has_token_ids and request.get("return_token_ids") is True
    common = {"id": f"chatcmpl-{words.id}", "object": "chat.completion.chunk", "created": CREATED}
    common["model"] = request["model"]
    count = request.get("n") or 1
    first = {"prompt_token_ids": token_ids_of(prompt_text(request))} if wants_ids else {}
    for index in range(count):
        yield _chunk(common, index, {"role": "assistant", "content": ""}, None, first)
        for delta, sampled in _deltas(words):
            more: dict[str, Any] = {"token_ids": token_ids_of(sampled)} if wants_ids else {}
            if request.get("logprobs"):
                more["logprobs"] = _chat_logprobs(sampled)
            yield _chunk(common, index, delta, None, {}, more)
        yield _chunk(common, index, {}, _finish(words), {})
    if (request.get("stream_options") or {}).get("include_usage"):
        yield sse({**common, "choices": [], "usage": usage_of(request, words, choices=count)})
    yield sse("[DONE]")


def _chunk(
    common: Mapping[str, Any],
    index: int,
    delta: Mapping[str, Any],
    reason: str | None,
    top: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason, **(more or {})}
    return sse({**common, "choices": [choice], **top})


def _deltas(words: Words) -> Iterator[tuple[dict[str, Any], str]]:
    """What each chunk adds, and the text that was sampled for it."""
    for token in tokens_of(words.reasoning or ""):
        yield {"reasoning_content": token}, token
    for token in tokens_of(words.refusal or ""):
        yield {"refusal": token}, token
    for token in tokens_of(words.text or ""):
        yield {"content": token}, token
    for number, (name, arguments) in enumerate(words.tool_calls):
        head = {"index": number, "id": words.call_id(number), "type": "function"}
        yield {"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]}, f" {name}"
        for token in tokens_of(" " + json.dumps(arguments)):
            piece = token[1:] if token.startswith(" {") else token
            yield {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}, token


def completion_words(request: Request, reply: Reply) -> Words:
    return words_for(reply, request, last=_prompt(request), tools=[])


def _prompt(request: Request) -> str:
    prompt = request["prompt"]
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def _completion_logprobs(request: Request, tokens: list[str]) -> dict[str, Any] | None:
    if request.get("logprobs") is None:
        return None
    return {
        "tokens": tokens,
        "token_logprobs": [logprob_of(token) for token in tokens],
        "top_logprobs": [{token: logprob_of(token)} for token in tokens],
        "text_offset": [sum(map(len, tokens[:number])) for number in range(len(tokens))],
    }


def completion_whole(request: Request, reply: Reply, *, has_token_ids: bool) -> dict[str, Any]:
    words = completion_words(request, reply)
    text, reason = words.text or "", words.finish_reason or "stop"
    choices = []
    for index in range(request.get("n") or 1):
        choice = {"index": index, "text": text, "finish_reason": reason}
        choice["logprobs"] = _completion_logprobs(request, tokens_of(text))
        if has_token_ids and request.get("return_token_ids") is True:
            choice |= {"prompt_token_ids": token_ids_of(_prompt(request)), "token_ids": token_ids_of(text)}
        choices.append(choice)
    body = {"id": f"cmpl-{words.id}", "object": "text_completion", "created": CREATED, "model": request["model"]}
    return body | {"choices": choices, "usage": usage_of(request, words, choices=len(choices))}


def completion_stream(request: Request, reply: Reply, *, has_token_ids: bool) -> Iterator[bytes]:
    words = completion_words(request, reply)
    wants_ids = has_token_ids and request.get("return_token_ids") is True
    common = {"id": f"cmpl-{words.id}", "object": "text_completion", "created": CREATED, "model": request["model"]}
    tokens = tokens_of(words.text or "")
    for number, token in enumerate(tokens):
        reason = (words.finish_reason or "stop") if number == len(tokens) - 1 else None
        choice = {"index": 0, "text": token, "finish_reason": reason}
        choice["logprobs"] = _completion_logprobs(request, [token])
        if wants_ids:
            choice |= {"prompt_token_ids": token_ids_of(_prompt(request))} if number == 0 else {}
            choice["token_ids"] = token_ids_of(token)
        yield sse({**common, "choices": [choice]})
    if (request.get("stream_options") or {}).get("include_usage"):
        yield sse({**common, "choices": [], "usage": usage_of(request, words)})
    yield sse("[DONE]")


def embeddings(request: Request) -> dict[str, Any]:
    """Four numbers for each text, from its length and first letter."""
    texts = request["input"] if isinstance(request["input"], list) else [request["input"]]
    data = []
    for index, text in enumerate(map(str, texts)):
        vector: Any = [len(text) / 100, ord((text or " ")[0]) / 1000, 0.25, -0.5]
        if request.get("encoding_format") == "base64":
            vector = base64.b64encode(array.array("f", vector).tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    count = sum(len(tokens_of(str(text))) for text in texts)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": request["model"], "usage": usage}
