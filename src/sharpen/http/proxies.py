"""The proxy that the environment sets for a server, and the tunnel through it that TLS needs."""

import asyncio
import base64
import ipaddress
import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError

MAX_HEAD_BYTES = 64 * 1024


class Proxy(NamedTuple):
    """Where it listens, and the headers that it requires."""

    host: str
    port: int
    headers: list[tuple[str, str]]


def proxy_for(scheme: str, host: str, port: int) -> Proxy | None:
    """Return the proxy for this server: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in either case."""
    if is_loopback(host) or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    # Imported where it is needed, as it loads a whole HTTP client.
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
        raise ConfigError(f"the environment sets the proxy {where}, but only http:// proxies are supported")
    headers = []
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers.append(("proxy-authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
    return Proxy(parts.hostname, parts.port or 80, headers)


async def open_tunnel(proxy: Proxy, host: str, port: int) -> asyncio.Transport:
    """Connect to the server through the proxy; raise ConnectionError if the proxy refuses."""
    loop = asyncio.get_running_loop()
    transport, handshake = await loop.create_connection(_TunnelHandshake, proxy.host, proxy.port)
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = "".join(f"{key}: {value}\r\n" for key, value in proxy.headers)
    transport.write(f"CONNECT {name} HTTP/1.1\r\nhost: {name}\r\n{lines}\r\n".encode("latin-1"))
    try:
        status = await handshake.status
    except BaseException:
        transport.abort()
        raise
    if not status.startswith("2"):
        transport.abort()
        raise ConnectionError(f"the proxy {proxy.host}:{proxy.port} refused a tunnel to {name}: {status}")
    return transport


class _TunnelHandshake(asyncio.Protocol):
    """Reads the one response of the proxy; what follows belongs to the server."""

    def __init__(self) -> None:
        self.status: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self.status.done():
            return
        if b"\r\n\r\n" in self._head:
            self.status.set_result(self._head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")[2])
        elif len(self._head) > MAX_HEAD_BYTES:
            self.status.set_exception(ConnectionError("the proxy sent something that is not HTTP"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.status.done():
            self.status.set_exception(error or ConnectionError("the proxy closed the connection"))
