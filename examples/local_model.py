"""A model for the other examples: a small server that can only call its tools and report what they said.

    python examples/local_model.py

It speaks OpenAI's chat completions and Anthropic's messages, and gives token ids when asked, as vLLM does. Run by
itself it prints its URL and answers until it is interrupted.
"""

import json
import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Words = dict[str, Any]


def think(request: Words) -> tuple[str | None, tuple[str, Words] | None]:
    """A call of the first unused tool with the numbers of the question; without one, what was said last."""
    talk = json.dumps(request["messages"])
    for tool in (each.get("function") or each for each in request.get("tools") or []):
        if f'"name": "{tool["name"]}"' not in talk:
            names = (tool.get("parameters") or tool["input_schema"]).get("properties", {})
            return None, (tool["name"], dict(zip(names, map(int, re.findall(r"\b\d+\b", talk)), strict=False)))
    last = request["messages"][-1]["content"]
    return f"The answer is {last if isinstance(last, str) else last[0]['content']}.", None


def chat(request: Words) -> Words:
    text, call = think(request)
    message: Words = {"role": "assistant", "content": text}
    if call is not None:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message["tool_calls"] = [{"id": f"call_{call[0]}", "type": "function", "function": function}]
    choice: Words = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
    body: Words = {"id": f"chatcmpl-{identity(request)}", "object": "chat.completion", "created": 1}
    body |= {"model": request["model"], "choices": [choice]}
    body["usage"] = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    if request.get("return_token_ids"):
        choice["token_ids"] = list((text or json.dumps(call)).encode())
        body["prompt_token_ids"] = list(json.dumps(request["messages"]).encode())
    return body


def messages(request: Words) -> Words:
    text, call = think(request)
    block: Words = {"type": "text", "text": text}
    if call is not None:
        block = {"type": "tool_use", "id": f"toolu_{call[0]}", "name": call[0], "input": call[1]}
    body: Words = {"id": f"msg_{identity(request)}", "type": "message", "role": "assistant", "content": [block]}
    body |= {"model": request["model"], "stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    return body | {"usage": {"input_tokens": 20, "output_tokens": 5}}


def identity(request: Words) -> int:
    return zlib.crc32(json.dumps(request).encode())


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "vllm"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._send(messages(request) if self.path.endswith("/messages") else chat(request))

    def _send(self, body: Words) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing to the screen."""


@contextmanager
def local_model() -> Iterator[str]:
    """The base URL of a running one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


if __name__ == "__main__":
    with local_model() as url:
        print(url, flush=True)
        threading.Event().wait()
