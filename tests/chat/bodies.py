"""Whole responses of each API, with everything that a model can say."""

from typing import Any

CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "small",
    "system_fingerprint": "fp",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Let me see 🌧",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
                    {"id": "b", "type": "function", "function": {"name": "now", "arguments": ""}},
                ],
            },
            "finish_reason": "tool_calls",
            "logprobs": {
                "content": [
                    {"token": "Let", "logprob": -0.5, "bytes": [76], "top_logprobs": [{"token": "x", "logprob": -2.0}]},
                    {"token": " me", "logprob": -0.25, "bytes": None, "top_logprobs": []},
                ],
                "refusal": None,
            },
            "token_ids": [5, 6],
        },
        {
            "index": 1,
            "message": {"role": "assistant", "content": None, "refusal": "no"},
            "finish_reason": "stop",
            "logprobs": None,
            "token_ids": [7],
        },
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
    "prompt_token_ids": [1, 2, 3],
    "weights_version": "4",
}
COMPLETION: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "small",
    "choices": [
        {
            "index": 0,
            "text": " and so on",
            "finish_reason": "length",
            "logprobs": {"tokens": [" and"], "token_logprobs": [-0.1], "top_logprobs": None, "text_offset": [0]},
        },
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "Let me see 🌧", "citations": None},
        {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 9, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 1},
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "model": "small",
    "status": "completed",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me see 🌧", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "a",
            "name": "weather",
            "arguments": '{"city":"Rome"}',
            "status": "completed",
        },
    ],
    "usage": {
        "input_tokens": 3,
        "output_tokens": 9,
        "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 1},
    },
}
BODIES: dict[str, dict[str, Any]] = {
    "chat": CHAT,
    "completions": COMPLETION,
    "messages": MESSAGE,
    "responses": RESPONSE,
}
