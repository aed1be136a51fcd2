"""HTTP/1.1 by hand, for a server that must be able to break it."""

import asyncio
import gzip
import json
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .replies import Reply

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass
class Asked:
    """One request as it came in, and how it ended."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    outcome: str = "open"
    """open, answered, faulty or left (the client hung up before the end)."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    status: int
    content_type: str
    chunks: Iterable[bytes]
    is_stream: bool
    headers: dict[str, str] = field(default_factory=dict)


async def read_request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def sent_unless_left(sending: "asyncio.Future[bool]", reader: asyncio.StreamReader) -> bool:
    """Whether the answer was sent; False when the client hung up meanwhile."""
    while not sending.done():
        await asyncio.wait({sending}, timeout=0.01)
        if not sending.done() and reader.at_eof():
            sending.cancel()
            await asyncio.wait({sending})
            return False
    return True


async def held(hold: threading.Event) -> None:
    while not hold.is_set():
        await asyncio.sleep(0.005)


async def write_answer(writer: asyncio.StreamWriter, answer: Answer, reply: Reply) -> None:
    if not answer.is_stream:
        body = b"".join(answer.chunks)
        body = gzip.compress(body) if reply.gzip else body
        more = {"content-length": str(len(body))} | ({"content-encoding": "gzip"} if reply.gzip else {})
        writer.write(head_of(answer, more) + body)
        await writer.drain()
        return
    writer.write(head_of(answer, {"transfer-encoding": "chunked"}))
    for number, chunk in enumerate(answer.chunks):
        await asyncio.sleep(reply.chunk_seconds)
        if number == 1 and reply.hold is not None:
            await held(reply.hold)
        writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def head_of(answer: Answer, more: dict[str, str]) -> bytes:
    fields = {"content-type": answer.content_type, "x-request-id": "req_scripted", **answer.headers, **more}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Status')}\r\n{lines}\r\n".encode("latin-1")


def whole(body: dict[str, Any]) -> Answer:
    return Answer(200, "application/json", [json.dumps(body).encode()], False)


def error_answer(asked: Asked, status: int, message: str, headers: dict[str, str] | None = None) -> Answer:
    """In the words of the API that was asked."""
    names = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = names.get(status, "api_error")
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    if asked.path.startswith("/v1/messages"):
        body = {"type": "error", "error": {"type": kind, "message": message}}
    return Answer(status, "application/json", [json.dumps(body).encode()], False, headers or {})


def key_of(asked: Asked) -> str | None:
    return asked.headers.get("x-api-key") or asked.headers.get("authorization", "").removeprefix("Bearer ") or None


def reset(writer: asyncio.StreamWriter) -> None:
    """A closed socket that lingers for no time sends RST."""
    link = writer.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
