"""The checks that all servers share, over real HTTP, in one application that uses every option."""

import asyncio
import contextlib
import gzip
import json
import logging
import socket
import threading
import zlib

import anthropic
import httpx
import msgspec
import openai
import pytest
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Mount, Route

from sharpen.errors import AccessDeniedError, FinishedError, TooLargeError, UnknownIdError, from_wire
from tests.web.internals import (
    STOPPING,
    HttpError,
    Limits,
    ServerThread,
    StreamResponse,
    WebApp,
    disconnected,
    listen,
    parse_json,
    read_body,
)

PATIENCE_SECONDS = 20
TOKEN = "right-token"
RIGHT = {"authorization": f"Bearer {TOKEN}"}
JSON = {"content-type": "application/json"}
LIMIT = 1000


class Order(msgspec.Struct):
    item: str
    count: int = 1


class Pages:
    """The handlers of the application, and what happened in them."""

    def __init__(self):
        self.may_go_on = threading.Event()
        self.is_waiting = threading.Event()
        self.is_gone = threading.Event()

    def routes(self):
        return [
            Route("/health", self.health),
            Route("/orders", self.order, methods=["POST"]),
            Route("/packed", self.packed, methods=["POST", "PUT"]),
            Route("/raise/{name}", self.fail),
            Route("/wait", self.wait),
            Route("/stream/{end}", self.stream),
            Mount("/pages", routes=[Route("/first", self.health)]),
        ]

    async def health(self, request):
        return PlainTextResponse("ok")

    async def order(self, request):
        body = await read_body(request.scope, request.receive)
        order = parse_json(body, msgspec.json.Decoder(Order).decode)
        return PlainTextResponse(f"{order.count} {order.item}", headers={"x-server": "order"})

    async def packed(self, request):
        options = {"types": None, "encodings": ("gzip", "deflate"), "max_bytes": 2 * LIMIT}
        return PlainTextResponse(await read_body(request.scope, request.receive, **options))

    async def fail(self, request):
        errors = {
            "unknown": UnknownIdError("no order 7"),
            "finished": FinishedError("order 7 is done"),
            "bug": LookupError("a secret detail"),
            "busy": HttpError(429, "too many", code="busy", headers=[(b"retry-after", b"3")]),
        }
        raise errors[request.path_params["name"]]

    async def wait(self, request):
        """A long poll: until the client has gone, or the server stops."""
        self.is_waiting.set()
        gone = asyncio.ensure_future(disconnected(request.receive))
        stop = asyncio.ensure_future(request.scope[STOPPING].wait())
        await asyncio.wait((gone, stop), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.is_gone.set()
        if request.query_params.get("stubborn"):
            await asyncio.sleep(PATIENCE_SECONDS)
        for each in (gone, stop):
            each.cancel()
        return PlainTextResponse("stopped")

    async def stream(self, request):
        return StreamResponse(self._pieces(request.path_params["end"]))

    async def _pieces(self, end):
        if end == "refused":
            raise HttpError(409, "not now", code="not_now")
        yield b"one "
        self.is_waiting.set()
        await asyncio.to_thread(self.may_go_on.wait, PATIENCE_SECONDS)
        if end == "broken":
            raise LookupError("lost its way")
        yield b"two"


@contextlib.contextmanager
def served(make_app, **options):
    bound = listen("127.0.0.1", 0)
    server = ServerThread(make_app, bound, limits=Limits(check_seconds=0.05), **options)
    server.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}", server
    finally:
        server.stop()


@pytest.fixture
def pages():
    found = Pages()
    yield found
    found.may_go_on.set()


@pytest.fixture
def serve(pages):
    """`serve(option=…)` gives the URL of an application."""
    with contextlib.ExitStack() as stack:

        def start(**options):
            used = {"token": TOKEN, "max_body_bytes": LIMIT, "open_paths": ("/health", "/pages/"), **options}
            url, _ = stack.enter_context(
                served(lambda stopping: WebApp(pages.routes(), stopping=stopping, **used), grace_seconds=1)
            )
            return url

        yield start


@pytest.fixture
def url(serve):
    return serve()


def error_of(answer):
    """The whole body has one shape, whatever went wrong."""
    body = answer.json()
    assert (body.keys(), body["type"]) == ({"type", "error"}, "error")
    assert body["error"].keys() == {"type", "message", "param", "code"}
    return body["error"]


def refusal(answer):
    return answer.status_code, error_of(answer)["code"]


# -- tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong-token"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"x-api-key": ""},
        {"cookie": f"token={TOKEN}"},
    ],
    ids=["none", "wrong", "longer", "another scheme", "no scheme", "an empty key", "a cookie"],
)
def test_a_request_without_the_token_is_refused(url, headers):
    answer = httpx.get(f"{url}/raise/unknown", headers=headers)
    assert refusal(answer) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in answer.text


@pytest.mark.parametrize("headers", [RIGHT, {"authorization": f"bearer  {TOKEN}"}, {"x-api-key": TOKEN}], ids=str)
def test_a_request_with_the_token_is_served(url, headers):
    assert httpx.get(f"{url}/raise/unknown", headers=headers).status_code == 404


def test_open_paths_and_folders_need_no_token(url):
    assert [httpx.get(url + path).status_code for path in ("/health", "/pages/first", "/healthy")] == [200, 200, 401]


def test_without_a_token_everybody_is_served(serve):
    assert httpx.get(f"{serve(token=None)}/raise/unknown").status_code == 404


# -- where a request comes from ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "wrong_host"),
        ({"host": "evil.example:80"}, "wrong_host"),
        ({"host": "localhost.evil.example"}, "wrong_host"),
        ({"origin": "http://evil.example"}, "wrong_origin"),
        ({"origin": "null"}, "wrong_origin"),
        ({"origin": "http://localhost:1"}, "wrong_origin"),
    ],
    ids=str,
)
def test_a_page_of_another_site_is_refused_even_with_the_token(url, headers, code):
    answer = httpx.get(f"{url}/health", headers={**RIGHT, **headers})
    assert refusal(answer) == (403, code)
    assert next(iter(headers.values())) in error_of(answer)["message"]


def test_a_request_without_a_host_is_refused(url):
    assert raw(url, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("host", ["localhost:5", "LOCALHOST", "127.0.0.1", "[::1]:5", "[::1]"])
def test_every_name_of_loopback_is_served(url, host):
    assert httpx.get(f"{url}/health", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


def test_hosts_are_chosen_by_the_server(serve):
    for hosts, wanted in ((None, 200), ({"evil.example"}, 200), ({"good.example"}, 403)):
        answer = httpx.get(f"{serve(hosts=hosts)}/health", headers={"host": "evil.example:5"})
        assert answer.status_code == wanted


@pytest.mark.parametrize("origins", [["https://site.example"], ["*"]], ids=str)
def test_pages_of_listed_sites_are_served_and_asked_for_the_token(serve, origins):
    url, headers = serve(origins=origins), {"origin": "https://site.example"}
    preflight = httpx.options(f"{url}/orders", headers={**headers, "access-control-request-method": "POST"})
    refused, answered = (
        httpx.post(f"{url}/orders", json={"item": "tea"}, headers={**headers, **more}) for more in ({}, RIGHT)
    )
    assert [each.status_code for each in (preflight, refused, answered)] == [204, 401, 200]
    assert {each.headers["access-control-allow-origin"] for each in (preflight, refused, answered)} == {
        "https://site.example"
    }
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in httpx.get(f"{url}/health").headers


def test_an_other_site_is_told_nothing_before_a_request(serve):
    answer = httpx.options(f"{serve(origins=['https://a.example'])}/orders", headers={"origin": "https://b.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


# -- bodies ------------------------------------------------------------------------------------------


def send(url, body, headers=None, *, path="/orders"):
    return httpx.post(url + path, content=body, headers={**RIGHT, **(headers or {})}, timeout=PATIENCE_SECONDS)


def test_a_body_is_read_whole_or_in_pieces(url):
    assert send(url, b'{"item": "tea", "count": 2}', JSON).text == "2 tea"
    pieces = iter([b'{"item": ', b'"tea"}'])
    assert send(url, pieces, {"content-type": "application/json; charset=utf-8"}).text == "1 tea"


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "param"),
    [
        (b"{}", {}, 415, "wrong_content_type", None),
        (b"{}", {"content-type": "text/plain"}, 415, "wrong_content_type", None),
        (b"{}", {**JSON, "content-encoding": "gzip"}, 415, "wrong_content_encoding", None),
        (b"", {}, 400, "malformed_json", None),
        (b"{", JSON, 400, "malformed_json", None),
        (b'{"item": "\xff"}', JSON, 400, "malformed_json", None),
        (b"[]", JSON, 400, "malformed_request", None),
        (b"{}", JSON, 400, "malformed_request", None),
        (b'{"item": "tea", "count": "two"}', JSON, 400, "invalid_type", "count"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_that_cannot_be_read_is_refused(url, body, headers, status, code, param):
    error = error_of(answer := send(url, body, headers))
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert answer.headers["x-should-retry"] == "false"


def test_a_body_nested_too_deeply_is_refused(serve):
    answer = send(serve(max_body_bytes=10**6), b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON)
    assert refusal(answer) == (400, "malformed_json")


def test_a_body_that_is_too_large_is_refused_by_its_declared_length(url):
    head = f"POST /orders HTTP/1.1\r\nhost: localhost\r\ncontent-length: {LIMIT + 1}\r\nx-api-key: {TOKEN}\r\n"
    answer = raw(url, head.encode() + b"content-type: application/json\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_large"


def test_a_body_that_is_too_large_is_refused_while_it_arrives(url):
    """No end of the body is ever sent."""
    head = f"POST /orders HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\nx-api-key: {TOKEN}\r\n"
    piece = b"1f4\r\n" + b" " * 500 + b"\r\n"
    answer = raw(url, head.encode() + b"content-type: application/json\r\nconnection: close\r\n\r\n" + 3 * piece)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_client_in_the_middle_of_a_large_body_can_read_why_it_is_refused(url):
    answer = send(url, b" " * 8 * 2**20, {**JSON, "connection": "close"})
    assert refusal(answer) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(b"hello"), "gzip", 200),
        (zlib.compress(b"hello"), "deflate", 200),
        (b"hello", "identity", 200),
        (b"x" * (LIMIT + 1), "identity", 200),
        (b"x" * (2 * LIMIT + 1), "identity", 413),
        (gzip.compress(b"x" * 10**6), "gzip", 413),
        (b"hello", "gzip", 400),
        (gzip.compress(b"hello" * 50)[:-9], "gzip", 400),
        (b"hello", "br", 415),
    ],
    ids=["gzip", "deflate", "plain", "a limit of its own", "too large", "a bomb", "not gzip", "cut off", "unknown"],
)
def test_packed_bodies_are_read_where_they_are_accepted(url, body, encoding, status):
    answer = send(url, body, {"content-encoding": encoding}, path="/packed")
    assert answer.status_code == status
    if status == 200:
        assert answer.text in ("hello", "x" * (LIMIT + 1))


# -- errors ------------------------------------------------------------------------------------------


def test_an_unknown_path_and_a_wrong_method_are_refused_by_name(url):
    lost = httpx.get(f"{url}/order", headers=RIGHT)
    assert refusal(lost) == (404, "not_found")
    assert "'/order'" in error_of(lost)["message"]
    assert "POST /orders" in error_of(lost)["message"]
    wrong = httpx.get(f"{url}/packed", headers=RIGHT)
    assert refusal(wrong) == (405, "wrong_method")
    assert {*wrong.headers["allow"].split(", ")} == {"POST", "PUT"}
    assert httpx.head(f"{url}/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "status", "api", "kind"),
    [
        ("/raise/unknown", 404, "not_found_error", UnknownIdError),
        ("/raise/finished", 409, "invalid_request_error", FinishedError),
        ("/pages/none", 404, "not_found_error", UnknownIdError),
        ("/health?evil", 403, "permission_error", AccessDeniedError),
    ],
)
def test_an_error_has_the_name_that_its_clients_know(serve, path, status, api, kind):
    for names, wanted in (("api", api), ("class", kind.__name__)):
        headers = {**RIGHT, **({"origin": "http://evil.example"} if "evil" in path else {})}
        answer = httpx.get(serve(error_names=names) + path, headers=headers)
        error = error_of(answer)
        assert (answer.status_code, error["type"]) == (status, wanted)
    assert type(from_wire(error["type"], error["message"])) is kind


def test_a_body_that_is_too_large_is_an_error_of_our_client(serve):
    error = error_of(send(serve(error_names="class"), b" " * (LIMIT + 1), JSON))
    assert type(from_wire(error["type"], error["message"])) is TooLargeError


def test_sdks_of_both_apis_read_an_error(url):
    with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert (caught.value.code, caught.value.type) == ("invalid_api_key", "authentication_error")
    with anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as other:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            other.models.list()
        assert refused.value.body["error"]["type"] == "authentication_error"
    with (
        anthropic.Anthropic(base_url=url, api_key=TOKEN, max_retries=0) as other,
        pytest.raises(anthropic.NotFoundError),
    ):
        other.models.list()


def test_an_error_may_be_worth_another_try(url):
    answer = httpx.get(f"{url}/raise/busy", headers=RIGHT)
    assert refusal(answer) == (429, "busy")
    assert answer.headers["retry-after"] == "3"
    assert "x-should-retry" not in answer.headers


def test_an_unexpected_error_is_logged_and_not_told(url, caplog):
    answer = httpx.get(f"{url}/raise/bug", headers=RIGHT)
    assert refusal(answer) == (500, "internal_error")
    assert "a secret detail" not in answer.text
    assert "a secret detail" in caplog.text


# -- streams, and clients that leave -----------------------------------------------------------------


def test_a_stream_is_sent_as_it_comes(url, pages):
    with httpx.stream("GET", f"{url}/stream/whole", headers=RIGHT, timeout=PATIENCE_SECONDS) as answer:
        pieces = answer.iter_raw()
        assert (next(pieces), pages.may_go_on.is_set()) == (b"one ", False)
        pages.may_go_on.set()
        assert b"".join(pieces) == b"two"
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_a_stream_that_fails_before_its_first_piece_has_a_status(url):
    assert refusal(httpx.get(f"{url}/stream/refused", headers=RIGHT)) == (409, "not_now")


def test_a_stream_that_fails_later_is_cut_and_logged(url, pages, caplog):
    pages.may_go_on.set()
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{url}/stream/broken", headers=RIGHT)
    assert "lost its way" in caplog.text


def test_a_long_poll_notices_that_its_client_has_gone(url, pages):
    with socket.create_connection(httpx.URL(url).netloc.decode().split(":"), timeout=PATIENCE_SECONDS) as client:
        client.sendall(f"GET /wait HTTP/1.1\r\nhost: localhost\r\nx-api-key: {TOKEN}\r\n\r\n".encode())
        assert pages.is_waiting.wait(PATIENCE_SECONDS)
        assert not pages.is_gone.is_set()
    assert pages.is_gone.wait(PATIENCE_SECONDS)


def test_a_client_that_leaves_in_its_body_is_nobodys_error(serve, caplog):
    with caplog.at_level(logging.DEBUG, "sharpen.web.access"):
        url = serve()
        with socket.create_connection(httpx.URL(url).netloc.decode().split(":")) as client:
            head = f"POST /orders HTTP/1.1\r\nhost: localhost\r\nx-api-key: {TOKEN}\r\ncontent-length: 9\r\n"
            client.sendall(head.encode() + b"content-type: application/json\r\n\r\n{")
        wait_for(lambda: "POST /orders 499" in caplog.text)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# -- the end -----------------------------------------------------------------------------------------


def asking(url, path):
    """Ask in a thread: the thread, and the list that the outcome comes into."""
    outcome = []

    def ask():
        try:
            outcome.append(httpx.get(url + path, timeout=PATIENCE_SECONDS))
        except httpx.HTTPError as error:
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, outcome


@pytest.mark.parametrize(
    ("path", "is_finished", "text"),
    [("/wait", True, "stopped"), ("/stream/whole", True, "one two"), ("/stream/whole", False, None)],
    ids=["a long poll", "a stream", "a stream without end"],
)
def test_a_stop_finishes_what_is_under_way_and_cuts_what_takes_too_long(pages, path, is_finished, text):
    grace = PATIENCE_SECONDS if is_finished else 0.2
    make = lambda stopping: WebApp(pages.routes(), stopping=stopping)  # noqa: E731
    with served(make, grace_seconds=grace, on_stop=pages.may_go_on.set if is_finished else None) as (url, server):
        thread, outcome = asking(url, path)
        assert pages.is_waiting.wait(PATIENCE_SECONDS)
        server.stop()
        thread.join(PATIENCE_SECONDS)
        assert (outcome[0].text == text) if is_finished else isinstance(outcome[0], httpx.RemoteProtocolError)
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


def test_a_request_that_does_not_end_is_told_that_the_server_stops(pages):
    make = lambda stopping: WebApp(pages.routes(), stopping=stopping)  # noqa: E731
    with served(make, grace_seconds=0.1) as (url, server):
        thread, outcome = asking(url, "/wait?stubborn=1")
        assert pages.is_waiting.wait(PATIENCE_SECONDS)
        server.stop()
        thread.join(PATIENCE_SECONDS)
    assert refusal(outcome[0]) == (503, "server_stopped")


# -- what servers add --------------------------------------------------------------------------------


def test_headers_of_the_server_are_on_every_response_that_has_not_its_own(serve):
    url = serve(headers=[(b"x-server", b"shop"), (b"x-frame-options", b"DENY")])
    answers = [httpx.get(f"{url}/health"), httpx.get(f"{url}/none"), send(url, b'{"item": "tea"}', JSON)]
    assert [each.headers["x-server"] for each in answers] == ["shop", "shop", "order"]
    assert {each.headers["x-frame-options"] for each in answers} == {"DENY"}


class Screen(WebApp):
    """As a dashboard: a cookie in place of a header, a token in an address, errors as pages."""

    def authorize(self, scope, headers):
        if scope["query_string"] == f"token={TOKEN}".encode():
            answer = RedirectResponse(scope["path"])
            answer.set_cookie("key", "opened", httponly=True)
            return answer
        return None if headers.get(b"cookie") == b"key=opened" else super().authorize(scope, headers)

    def error_response(self, scope, error):
        return HTMLResponse(f"<h1>{error.status}</h1>", error.status)


def test_a_server_may_have_rules_and_errors_of_its_own(pages):
    with (
        served(lambda stopping: Screen(pages.routes(), token=TOKEN, stopping=stopping)) as (url, _),
        httpx.Client(base_url=url, follow_redirects=True) as client,
    ):
        refused, entered, again = (client.get(f"/pages/first{query}") for query in ("", f"?token={TOKEN}", ""))
        assert (refused.status_code, refused.text) == (401, "<h1>401</h1>")
        assert [entered.text, again.text] == ["ok", "ok"]


def test_any_application_can_stand_behind_the_checks():
    async def app(scope, receive, send):
        body = await read_body(scope, receive)
        await PlainTextResponse(scope["path"].encode() + body)(scope, receive, send)

    with served(lambda stopping: WebApp(app, token=TOKEN, stopping=stopping)) as (url, _):
        assert send(url, b"{}", JSON, path="/any/where").text == "/any/where{}"
        assert httpx.get(url).status_code == 401


async def test_another_server_may_start_and_stop_it_and_finds_no_websocket():
    told, coming = [], iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive():
        return next(coming)

    async def send(message):
        told.append(message["type"])

    app = WebApp([])
    await app({"type": "lifespan"}, receive, send)
    await app({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


def test_requests_are_logged_without_their_secrets(serve, caplog):
    with caplog.at_level(logging.DEBUG, "sharpen.web.access"):
        url = serve()
        httpx.get(f"{url}/health?token=hidden")
        httpx.get(f"{url}/a%0Ab", headers=RIGHT)
        wait_for(lambda: "%0A" in caplog.text)
    assert "GET /health 200" in caplog.text
    assert "GET /a%0Ab 404" in caplog.text
    assert not [secret for secret in ("hidden", TOKEN) if secret in caplog.text]


def wait_for(condition):
    waiting = threading.Event()
    for _ in range(PATIENCE_SECONDS * 100):
        if condition():
            return
        waiting.wait(0.01)
    pytest.fail("it did not happen")


def raw(url, data):
    """All that a server answers to these bytes, until it closes the connection."""
    with socket.create_connection(httpx.URL(url).netloc.decode().split(":"), timeout=PATIENCE_SECONDS) as client:
        client.sendall(data)
        return client.makefile("rb").read()
