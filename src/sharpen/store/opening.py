"""Opening a store: by the URL of a database, or by the address that a store gives for other processes.

A URL may carry a password: no message shows more of it than its scheme.
"""

import os
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from ..checks import did_you_mean
from ..errors import InvalidInputError
from .base import LightningStore

DATABASE_VARIABLE = "SHARPEN_DATABASE_URL"
SCHEMES = {
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
}


def scheme_of(database_url: str) -> str:
    """The scheme of a URL in small letters; a plain path is that of a SQLite file."""
    scheme, sign, _ = database_url.partition("://")
    return scheme.lower() if sign else "sqlite"


def open_url(database_url: str | os.PathLike[str], **options: Any) -> LightningStore:
    """Open `sqlite:///PATH` or a path, `postgresql://…`, or `redis://…` (TLS: `rediss://…`, a socket: `unix://…`).

    The options are those of the store: `read_only`, `busy_seconds`, … A Redis URL may end in `?prefix=NAME`.
    """
    text = _with_small_scheme(os.fspath(database_url))
    kind = SCHEMES.get(scheme_of(text))
    if kind is None:
        raise InvalidInputError(_unknown(scheme_of(text)))
    if kind != "sqlite" and "synchronous" in options:
        raise InvalidInputError("synchronous only applies to SQLite files: configure the database server instead")
    if kind == "postgres":
        from .postgres import PostgresStore

        return PostgresStore(text, **options)
    if kind == "redis":
        from .redis import RedisLightningStore

        url, prefix = _without_prefix(text)
        return RedisLightningStore(url, **(options if prefix is None else {"prefix": prefix, **options}))
    from .sqlite import SQLiteStore

    return SQLiteStore(text, **options)


def _with_small_scheme(url: str) -> str:
    """The clients of the databases know their schemes in small letters only."""
    _, sign, rest = url.partition("://")
    return f"{scheme_of(url)}://{rest}" if sign else url


def _unknown(scheme: str) -> str:
    if scheme in ("http", "https"):
        return f"the database URL begins with {scheme}://, the address of a store server: pass the URL of a database"
    known = [f"{each}://" for each in SCHEMES]
    near = did_you_mean(f"{scheme}://", known)
    return (
        f"the database URL begins with {scheme}://: use sqlite:///PATH, postgresql://, redis:// or a plain path.{near}"
    )


def _without_prefix(url: str) -> tuple[str, str | None]:
    """The URL as the client of Redis knows it, and the prefix, which is ours."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, None  # the store says what is wrong with it
    query = parse_qsl(parts.query, keep_blank_values=True)
    prefixes = [value for name, value in query if name == "prefix"]
    if not prefixes:
        return url, None
    rest = urlencode([(name, value) for name, value in query if name != "prefix"])
    return urlunsplit(parts._replace(query=rest)), prefixes[-1]


class ServerAddress(msgspec.Struct, frozen=True, tag="server"):
    """A store behind a server."""

    url: str
    token: str | None = None
    token_file: str | None = None
    """Where a new token is found when the server refuses this one."""
    options: dict[str, Any] = {}
    """The keyword arguments of the client."""

    def open(self) -> LightningStore:
        """Return a client of the server."""
        from .client import LightningStoreClient

        return LightningStoreClient(self.url, self.token, token_file=self.token_file, **self.options)

    def __repr__(self) -> str:
        return f"ServerAddress({self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("url", self.url)]


class DatabaseAddress(msgspec.Struct, frozen=True, tag="database"):
    """A database that several processes may open."""

    url: str
    options: dict[str, Any] = {}
    """The keyword arguments of the store."""

    @property
    def is_file(self) -> bool:
        """Whether the database is a SQLite file."""
        return scheme_of(self.url) == "sqlite"

    def open(self, *, expires_attempts: bool = False) -> LightningStore:
        """Open the database. Pass `expires_attempts` in the process that receives the heartbeats."""
        return open_url(self.url, expires_attempts=expires_attempts, **self.options)

    def __repr__(self) -> str:
        return f"DatabaseAddress({scheme_of(self.url)!r})"  # the URL may hold a password

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("scheme", scheme_of(self.url))]


StoreAddress = ServerAddress | DatabaseAddress


def address_of(store: LightningStore) -> StoreAddress | None:
    """Return how another process opens a store, also of a user's own, which may know nothing of addresses.

    What a wrapper passes on to the store behind it does not count: others would go past the wrapper.
    """
    asked = getattr(store, "address", None) if hasattr(type(store), "address") else None
    found = asked() if callable(asked) else None
    return found if isinstance(found, StoreAddress) else None
