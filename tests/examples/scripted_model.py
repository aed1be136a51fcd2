"""A model that says what a function wants it to, as an OpenAI-compatible server on loopback."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Say = Callable[[list[dict[str, str]]], str]


@contextmanager
def scripted_model(say: Say) -> Iterator[str]:
    """Its base URL; `say` makes an answer of the messages."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            message = {"role": "assistant", "content": say(request["messages"])}
            body: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1}
            body |= {"model": request["model"], "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing to the screen."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
