"""A server on loopback that speaks the chat-completions protocol, for the real `openai` client to talk to."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

PROMPT = "What is the capital of Testland, secretly?"
ANSWER = "The capital is Assertopolis."
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
TOOL_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"country": "Testland"}'},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Finds a capital",
            "parameters": {"type": "object", "properties": {"country": {"type": "string"}}},
        },
    }
]


def messages(text: str = PROMPT) -> list[Any]:
    return [{"role": "system", "content": "You are terse."}, {"role": "user", "content": text}]


def _whole(asked: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    if asked.get("tools") and asked["messages"][-1]["role"] == "user":
        message = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
    if asked["messages"][-1]["content"].startswith("echo "):
        message["content"] = asked["messages"][-1]["content"]
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    common = {"id": "chatcmpl-1", "created": 1, "model": f"{asked['model']}-served"}
    return {**common, "object": "chat.completion", "choices": [choice], "usage": USAGE}


def _chunks(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    common = {"id": "chatcmpl-1", "created": 1, "model": f"{asked['model']}-served", "object": "chat.completion.chunk"}
    first, second = ANSWER[:10], ANSWER[10:]
    for delta, reason in (
        ({"role": "assistant", "content": first}, None),
        ({"content": second}, None),
        ({}, "stop"),
    ):
        yield {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    yield {**common, "choices": [], "usage": USAGE}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet for head and body: two of them would wait 40 ms for each other.
    wbufsize = -1

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["model"] == "broken":
            self._answer(400, "application/json", json.dumps({"error": {"message": "no such model"}}).encode())
        elif asked.get("stream"):
            lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks(asked)]
            self._answer(200, "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode())
        else:
            self._answer(200, "application/json", json.dumps(_whole(asked)).encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing to the screen."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 200
    daemon_threads = True


@contextmanager
def chat_server() -> Iterator[str]:
    """The base URL of a running server."""
    server = _Server(("127.0.0.1", 0), _Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
