"""Addresses of stores and gateways: the parts of a URL, and the token that opens what is behind it."""

from urllib.parse import SplitResult, urlsplit

from ..errors import ConfigError

STORE_PORT = 4747  # of a store that is served apart
DASHBOARD_PORT = 4748
GATEWAY_PORT = 4749
DATABASE_VARIABLE = "SHARPEN_DATABASE_URL"
"""Where the URL of a database is read from, so that its password is on no command line."""


def is_address(text: str) -> bool:
    """Whether a text means a server, and not a file or a run."""
    return text.startswith(("http://", "https://"))


def is_database(text: str) -> bool:
    """Whether a text means a database server, also by the name of a variable that holds its URL. One of an unknown kind
    is refused where it is opened."""
    from ..components.paths import resolve_address
    from ..store.opening import scheme_of

    return scheme_of(resolve_address(text.strip())) not in ("sqlite", "http", "https")


def split_address(url: str) -> tuple[str, int]:
    """Host and port of a store server."""
    parts = _split(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"--store is {_shown(url)!r}: give the address of a store server, such as http://127.0.0.1:4747"
        )
    return parts.hostname, _port(parts, url) or (443 if parts.scheme == "https" else STORE_PORT)


def served_place(url: str, *, who: str) -> tuple[str, int]:
    """Host and port of a store server, for a role that waits for it there."""
    from ..components.paths import resolve_address

    url = resolve_address(url.strip())
    if is_database(url):
        raise ConfigError(
            f"--store is a database, but {who} reach a store by its server: serve it with `sharpen store serve`, and "
            "give the address of that"
        )
    if url.startswith("https://"):
        raise ConfigError(
            f"--store is {_shown(url)!r}, but {who} reach a store by http:// only: use a tunnel or a proxy"
        )
    return split_address(url)


def token_for(url: str) -> str | None:
    """The token of SHARPEN_TOKEN, else the one that a store server of this user left on this machine."""
    from ..store.tokens import token_at

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
