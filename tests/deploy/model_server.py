"""A model behind an OpenAI-compatible API that can multiply, slowly."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

QUESTION = re.compile(r"What is (\d+) \* (\d+)\?")


class ModelServer(ThreadingHTTPServer):
    """`asked` are the questions that came with the right key."""

    daemon_threads = True

    def __init__(self, key: str, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.key, self.seconds = key, seconds
        self.asked: list[str] = []
        self.in_flight: set[int] = set()
        """The threads of calls that wait for their answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def do_GET(self) -> None:
        self._answer(404, {"error": {"message": "there is nothing here"}})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != f"Bearer {self.server.key}":
            return self._answer(401, {"error": {"message": "wrong key"}})
        question = request["messages"][-1]["content"]
        self.server.asked.append(question)
        self.server.in_flight.add(threading.get_ident())
        time.sleep(self.server.seconds)
        self.server.in_flight.discard(threading.get_ident())
        found = QUESTION.fullmatch(question)
        assert found is not None, question
        return self._answer(200, _completion(request["model"], str(int(found[1]) * int(found[2]))))

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """A test has nothing to read here."""


def _completion(model: str, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9},
    }


@contextmanager
def model_server(key: str, *, seconds: float) -> Iterator[ModelServer]:
    """A server that takes `seconds` for an answer."""
    with ModelServer(key, seconds) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
