"""Addresses of stores and gateways: the parts of a URL, and the token that a server expects."""

from urllib.parse import SplitResult, urlsplit

from ..errors import ConfigError

STORE_PORT = 4747  # of a separate store server
DASHBOARD_PORT = 4748
GATEWAY_PORT = 4749
DATABASE_VARIABLE = "SHARPEN_DATABASE_URL"
"""Where the URL of a database is read from, so that its password is not on a command line."""


def is_address(text: str) -> bool:
    """Whether a text is the address of a server, not a file or a run."""
    return text.startswith(("http://", "https://"))


def is_database(text: str) -> bool:
    """Whether a text is the URL of a database, or `env:NAME` of a variable that holds one. An unknown kind is refused
    when it is opened."""
    from ..components.paths import resolve_address
    from ..store.opening import scheme_of

    return scheme_of(resolve_address(text.strip())) not in ("sqlite", "http", "https")


def split_address(url: str) -> tuple[str, int]:
    """Return the host and the port of a store server."""
    parts = _split(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"--store is {_shown(url)!r}: use the address of a store server, such as http://127.0.0.1:4747"
        )
    return parts.hostname, _port(parts, url) or (443 if parts.scheme == "https" else STORE_PORT)


def served_place(url: str, *, who: str) -> tuple[str, int]:
    """Return the host and the port of a store server that a role waits for."""
    from ..components.paths import resolve_address

    url = resolve_address(url.strip())
    if is_database(url):
        raise ConfigError(
            f"--store is a database, but {who} need a store server: serve it with `sharpen store serve`, and use the "
            "address that it prints"
        )
    if url.startswith("https://"):
        raise ConfigError(f"--store is {_shown(url)!r}, but {who} only support http://: use a tunnel or a proxy")
    return split_address(url)


def token_for(url: str) -> str | None:
    """Return the token in SHARPEN_TOKEN, otherwise the one that a store server of this user saved on this machine."""
    from ..store.token_files import token_at

    return token_at(*split_address(url))


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"--store is {_shown(url)!r}: {error}") from error


def _port(parts: SplitResult, url: str) -> int | None:
    try:
        return parts.port
    except ValueError as error:
        raise ConfigError(f"--store is {_shown(url)!r}: {error}") from error


def _shown(url: str) -> str:
    from ..secrets import hidden_password

    return hidden_password(url)
