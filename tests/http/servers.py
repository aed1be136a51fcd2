"""Servers that say exactly what a test tells them to, and keep what they heard."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Name: Value\r\n\r\nok"
NAME = "upstream.example"


class Cut(Exception):
    """Ends a connection in the middle of an answer."""


class Hears:
    """What a server has heard: the heads of requests, by connection."""

    def __init__(self) -> None:
        self.heads: list[list[str]] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self.port = 0


@asynccontextmanager
async def answering(*answers, closes_after=None, tls=None) -> AsyncIterator[Hears]:
    """Gives these answers in turn on each connection: bytes, a coroutine function that writes, or None for silence."""
    hears = Hears()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads: list[str] = []
        hears.heads.append(heads)
        try:
            for number, answer in enumerate(answers):
                heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                length = int(heads[-1].lower().split("content-length: ")[1].split("\r\n")[0])
                hears.bodies.append(await reader.readexactly(length))
                if answer is None:
                    await reader.read()
                elif isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    await answer(writer)
                if closes_after == number + 1:
                    return
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError, Cut):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        hears.port = server.sockets[0].getsockname()[1]
        hears.url = f"http{'s' if tls else ''}://127.0.0.1:{hears.port}"
        yield hears


@asynccontextmanager
async def tunnelling(to: int, *, status: str = "200 Connection established") -> AsyncIterator[Hears]:
    """A proxy whose every tunnel, and every plain request, leads to this port of loopback."""
    hears = Hears()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        hears.heads.append([head])
        there, back = await asyncio.open_connection("127.0.0.1", to)
        if not head.startswith("CONNECT"):
            back.write(head.encode())
        else:
            writer.write(f"HTTP/1.1 {status}\r\nvia: us\r\n\r\n".encode())
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            writer.close()
            back.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        hears.port = server.sockets[0].getsockname()[1]
        hears.url = f"http://127.0.0.1:{hears.port}"
        yield hears


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()


def make_certificate(folder: Path) -> Path:
    """A certificate for `NAME` with its key, in one file."""
    key, certificate, both = folder / "key.pem", folder / "certificate.pem", folder / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={NAME}"]
    command += ["-addext", f"subjectAltName=DNS:{NAME},IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(certificate.read_text() + key.read_text())
    return both


def server_tls(pem: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def client_tls(pem: Path) -> ssl.SSLContext:
    """Trusts this certificate and no other."""
    return ssl.create_default_context(cafile=str(pem))
