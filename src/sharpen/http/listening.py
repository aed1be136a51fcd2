"""The socket that a server listens on: bound with an error in plain words, and named for clients."""

import errno
import ipaddress
import socket

from ..errors import ConfigError, PortTakenError


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By the protocol's name asyncio knows that accepted connections must not wait before they send a small piece.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
        bound.listen(2048)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(
                f"port {port} on {host} is taken: another program listens there; "
                "choose another port, or leave it open (None; on a command line --port 0) for a free one"
            ) from error
        raise ConfigError(f"this machine cannot listen on host {host!r}, port {port}: {error.strerror}") from error
    return bound


def address(host: str, port: int) -> str:
    """The URL for clients on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name and not name.startswith('[') else name}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str) -> frozenset[str] | None:
    """On loopback only its own names are served; elsewhere a token guards, and names are the user's business."""
    return frozenset({"localhost", "127.0.0.1", "[::1]", host}) if is_loopback(host) else None
