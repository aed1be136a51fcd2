"""A model that answers with the words it was asked, over OpenAI's protocol."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps(_answer(asked)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    said = f"You said: {asked['messages'][-1]['content']}"
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    about = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": asked["model"]}
    return {**about, "choices": [choice], "usage": usage}


@contextmanager
def model_server() -> Iterator[str]:
    """The address of a model that answers until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
