"""A real HTTP server on loopback that speaks chat completions and answers by a function.

    def reply(request: dict[str, Any]) -> str | Reply:
        return "hello" if request["model"] == "good" else Reply(status=429)

    with ScriptedOpenAI(reply) as server:
        client = server.client(max_retries=0)

The function gets the JSON body of each request and runs in a thread of its own, so it may wait. What it raises is
answered with 500 and raised again when the server is left. Errors carry `retry-after-ms: 1`: a client's own retries
take no time.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

KEY = "sk-scripted-secret"


@dataclass(frozen=True)
class Reply:
    """One answer of the server; the defaults are an ordinary one."""

    text: str | None = ""
    refusal: str | None = None
    finish_reason: str = "stop"
    tool_calls: list[dict[str, Any]] | None = None
    usage: tuple[int, int] | None = None
    """Input and output tokens; by default the words of the messages and of the text."""
    status: int = 200
    error: str | Mapping[str, Any] = "scripted error"
    """The message of an error, or its whole JSON body; used when `status` is 400 or more."""
    delay_seconds: float = 0.0
    is_dropped: bool = False
    """Close the connection instead of answering."""
    body: Mapping[str, Any] | None = None
    """The whole JSON body, instead of a completion."""
    raw: bytes | None = None
    """The body, whatever it is."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    body: dict[str, Any]
    at: float
    """`time.monotonic()` of its arrival."""
    key: str | None

    @property
    def model(self) -> str:
        return str(self.body.get("model"))

    @property
    def text(self) -> str:
        """The contents of all its messages."""
        return text_of(self.body)


def text_of(request: Mapping[str, Any]) -> str:
    """The contents of all messages of a request, one below the other."""
    return "\n".join(str(message.get("content") or "") for message in request.get("messages", []))


Script = Callable[[dict[str, Any]], "str | Reply"]


class ScriptedOpenAI:
    def __init__(
        self,
        reply: Script | str | Reply = "ok",
        *,
        models: tuple[str, ...] = ("*",),
        listing: Reply | None = None,
    ) -> None:
        """`models` are those it lists, with a star for any; `listing` is sent in place of that list."""
        self.reply: Script = reply if callable(reply) else lambda request: reply
        self.models, self.listing = models, listing
        self.num_open = 0
        """Connections that are open."""
        self.requests: list[Asked] = []
        """Every chat completion that was asked for, in order of arrival."""
        self.most_at_once = 0
        """The most requests that were in work at one time."""
        self._at_once = 0
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._stopping = threading.Event()

    def count(self, *, model: str | None = None, containing: str = "") -> int:
        """How many requests there were: of this model, with this text in their messages."""
        with self._lock:
            asked = list(self.requests)
        return sum((model is None or each.model == model) and containing in each.text for each in asked)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def client(self, **settings: Any) -> AsyncOpenAI:
        """The real client, of this server."""
        # Reading the certificates takes most of the time of making one, and loopback needs none.
        link = DefaultAsyncHttpxClient(verify=False)
        return AsyncOpenAI(**({"base_url": self.base_url, "api_key": KEY, "http_client": link} | settings))

    # -- its life ------------------------------------------------------------------------------------

    def __enter__(self) -> "ScriptedOpenAI":
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.script = self
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, kwargs={"poll_interval": 0.02}, daemon=True, name="scripted")
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._errors and kind is None:
            raise self._errors[0]

    # -- one request ---------------------------------------------------------------------------------

    def count_open(self, change: int) -> None:
        with self._lock:
            self.num_open += change

    def answer(self, request: dict[str, Any], key: str | None) -> Reply:
        """What the script says, after its delay."""
        with self._lock:
            self.requests.append(Asked(request, time.monotonic(), key))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            said = self.reply(request)
            reply = said if isinstance(said, Reply) else Reply(said)
            self._stopping.wait(reply.delay_seconds)
            return reply
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            self._errors.append(error)
            return Reply(status=500, error=repr(error))
        finally:
            with self._lock:
                self._at_once -= 1


class _Server(ThreadingHTTPServer):
    request_queue_size = 200
    daemon_threads = True
    script: ScriptedOpenAI


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    # One packet for head and body: two of them would wait 40 ms for each other.
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.server.script.count_open(+1)

    def finish(self) -> None:
        self.server.script.count_open(-1)
        super().finish()

    def do_GET(self) -> None:
        script, name = self.server.script, unquote(self.path.rpartition("/")[2])
        models = [{"id": name, "object": "model", "created": 1, "owned_by": "us"} for name in script.models]
        if script.listing is not None:
            self._reply(script.listing, {})
        elif name == "models":
            self._send(200, {"object": "list", "data": models})
        else:
            is_known = name in script.models or f"models/{name}" in script.models  # which some servers list
            self._send(200 if is_known else 404, {"id": name, "object": "model"})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.endswith("/chat/completions"):
            self._send(404, {"error": {"message": f"no {self.path} here"}})
            return
        reply = self.server.script.answer(request, _key_of(self.headers.get("authorization")))
        self._reply(reply, request)

    def _reply(self, reply: Reply, request: dict[str, Any]) -> None:
        if reply.is_dropped:
            self.close_connection = True
        elif reply.status >= 400:
            body = {"error": {"message": reply.error}} if isinstance(reply.error, str) else dict(reply.error)
            self._send(reply.status, body, {"retry-after-ms": "1", **reply.headers})
        else:
            body = _completion(request, reply) if reply.body is None else reply.body
            self._send(reply.status, body if reply.raw is None else reply.raw, reply.headers)

    def _send(self, status: int, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content)
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # the client left: it timed out

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing to the screen."""


def _key_of(authorization: str | None) -> str | None:
    return authorization.removeprefix("Bearer ") if authorization else None


def _completion(request: dict[str, Any], reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": reply.refusal}
    if reply.tool_calls:
        message["tool_calls"] = reply.tool_calls
    asked, said = reply.usage or (len(text_of(request).split()), len((reply.text or "").split()))
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1,
        "model": request.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }
