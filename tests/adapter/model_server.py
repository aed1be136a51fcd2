"""A small OpenAI-compatible server on loopback whose answers depend only on what it is asked."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WEATHER_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
}


def answer(request):
    """Asks for the weather first, then says what the tool told."""
    last = request["messages"][-1]
    if request.get("tools") and last["role"] != "tool":
        return {"role": "assistant", "content": None, "tool_calls": [WEATHER_CALL]}
    return {"role": "assistant", "content": f"You said: {last['content']}"}


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        """Tests say what went wrong themselves."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if request["model"] == "broken":
            self._send(500, {"error": {"message": "out of order"}})
            return
        choices = [
            {"index": number, "message": answer(request), "finish_reason": "stop"}
            for number in range(request.get("n", 1))
        ]
        body = {"id": f"chatcmpl-{self.server.count()}", "object": "chat.completion", "created": 1, "choices": choices}
        self._send(200, {**body, "model": request["model"], "usage": _USAGE})

    def _send(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


_USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


class _Server(ThreadingHTTPServer):
    answered = 0

    def count(self):
        self.answered += 1
        return self.answered


@contextmanager
def model_server():
    """The base URL of a running server."""
    server = _Server(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
