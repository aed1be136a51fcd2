"""The SDKs of OpenAI and Anthropic on both sides: their requests are read, and written events are read by them."""

import json
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import openai
import pytest

from tests.chat.internals import Message, TextPart, ToolResult, parse_request, parse_response, parse_stream

from .bodies import CHAT, COMPLETION, MESSAGE, RESPONSE
from .events import event_bytes, events_of

APIS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/chat/completions": ("chat", CHAT),
    "/completions": ("completions", COMPLETION),
    "/messages": ("messages", MESSAGE),
    "/responses": ("responses", RESPONSE),
}


class Model(ThreadingHTTPServer):
    """Answers with the bodies of this folder, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[Any, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        api, answer = APIS[self.path.removeprefix("/v1")]
        self.server.asked.append((api, body))
        is_stream = json.loads(body).get("stream") is True
        data = b"".join(events_of(api, answer)) if is_stream else json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Tests are quiet."""


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def client(model: Model) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{model.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def claude(model: Model) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=model.url, api_key="none", max_retries=0)


def as_stream(events: Iterable[Any]) -> bytes:
    """The events as the SDK understood them."""
    return b"".join(event_bytes(event.model_dump_json().encode()) for event in events)


TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_chat(client: openai.OpenAI, model: Model) -> None:
    ask: Any = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "temperature": 0.5}
    whole = client.chat.completions.create(**ask, max_completion_tokens=9)
    assert parse_response("chat", whole.model_dump_json().encode()) == parse_response("chat", CHAT)
    request = parse_request(*model.asked[0])
    assert request.messages == [Message("user", [TextPart("Hi")])]
    assert request.tools == [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
    assert (request.sampling.temperature, request.sampling.max_tokens, request.is_stream) == (0.5, 9, False)
    chunks = client.chat.completions.create(**ask, stream=True)
    assert parse_stream("chat", as_stream(chunks)) == parse_response("chat", CHAT)
    assert parse_request(*model.asked[1]).is_stream


def test_the_sdk_joins_a_chat_from_written_events(client: openai.OpenAI) -> None:
    ask: Any = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}
    with client.chat.completions.stream(**ask) as stream:
        found = stream.get_final_completion()
    assert parse_response("chat", found.model_dump_json().encode()).messages == parse_response("chat", CHAT).messages


def test_completions(client: openai.OpenAI, model: Model) -> None:
    chunks = client.completions.create(model="small", prompt=["Go", "on"], stream=True)
    assert parse_stream("completions", as_stream(chunks)) == parse_response("completions", COMPLETION)
    assert [message.parts for message in parse_request(*model.asked[0]).messages] == [
        [TextPart("Go")],
        [TextPart("on")],
    ]


def test_responses(client: openai.OpenAI, model: Model) -> None:
    items: Any = [{"role": "user", "content": "Hi"}, {"type": "function_call_output", "call_id": "a", "output": "rain"}]
    with client.responses.stream(model="small", instructions="Be brief.", input=items) as stream:
        found = stream.get_final_response()
    expected = parse_response("responses", RESPONSE)
    assert parse_response("responses", found.model_dump_json().encode()).messages == expected.messages
    events = list(client.responses.create(model="small", input="Hi", stream=True))
    assert parse_stream("responses", as_stream(events)) == expected
    assert parse_stream("responses", as_stream(events[:-1])).messages[0].parts == expected.messages[0].parts
    request = parse_request(*model.asked[0])
    assert request.instructions == [TextPart("Be brief.")]
    assert request.messages[1] == Message("tool", [ToolResult("a", "rain")])


def test_messages(claude: anthropic.Anthropic, model: Model) -> None:
    ask: Any = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    with claude.messages.stream(**ask, system="Be brief.", stop_sequences=["x"]) as stream:
        found = stream.get_final_message()
    expected = parse_response("messages", MESSAGE)
    assert parse_response("messages", found.model_dump_json().encode()) == expected
    events = claude.messages.create(**ask, stream=True)
    assert parse_stream("messages", as_stream(events)) == expected
    request = parse_request(*model.asked[0])
    assert request.instructions == [TextPart("Be brief.")]
    assert (request.sampling.max_tokens, request.sampling.stop) == (9, ["x"])
