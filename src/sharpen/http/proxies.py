"""The proxy that the environment names for a server, and the tunnel through it that TLS needs."""

import asyncio
import base64
import ipaddress
import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError

MAX_HEAD_BYTES = 64 * 1024


class Proxy(NamedTuple):
    """Where it listens, and the headers that it wants to see."""

    host: str
    port: int
    headers: list[tuple[str, str]]


def proxy_for(scheme: str, host: str, port: int) -> Proxy | None:
    """The proxy for this server, by `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` in either case."""
    if is_loopback(host) or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    # Imported where it is needed: it brings a whole HTTP client along.
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    named = getproxies_environment()
    url = named.get(scheme) or named.get("all")
    if not url or proxy_bypass_environment(f"{host}:{port}", named):
        return None
    return _parse(url)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _parse(url: str) -> Proxy:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        where = f"{parts.scheme}://{parts.hostname}"  # without the password that it may hold
        raise ConfigError(f"the environment names the proxy {where}: only http:// proxies can be used here")
    headers = []
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers.append(("proxy-authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
    return Proxy(parts.hostname, parts.port or 80, headers)


async def open_tunnel(proxy: Proxy, host: str, port: int) -> asyncio.Transport:
    """A connection to the server behind the proxy; a proxy that refuses is a ConnectionError."""
    loop = asyncio.get_running_loop()
    transport, opening = await loop.create_connection(_Opening, proxy.host, proxy.port)
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = "".join(f"{key}: {value}\r\n" for key, value in proxy.headers)
    transport.write(f"CONNECT {name} HTTP/1.1\r\nhost: {name}\r\n{lines}\r\n".encode("latin-1"))
    try:
        status = await opening.answered
    except BaseException:
        transport.abort()
        raise
    if not status.startswith("2"):
        transport.abort()
        raise ConnectionError(f"the proxy {proxy.host}:{proxy.port} refused a tunnel to {name}: {status}")
    return transport


class _Opening(asyncio.Protocol):
    """Reads the proxy's one answer; what follows belongs to the server."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self.answered.done():
            return
        if b"\r\n\r\n" in self._head:
            self.answered.set_result(self._head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")[2])
        elif len(self._head) > MAX_HEAD_BYTES:
            self.answered.set_exception(ConnectionError("the proxy does not speak HTTP"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(error or ConnectionError("the proxy closed the connection"))
