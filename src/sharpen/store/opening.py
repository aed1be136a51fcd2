"""The store that a database URL names: a SQLite file, a PostgreSQL database or a Redis server.

A URL may carry a password: no message shows more of it than its scheme.
"""

import os
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

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


def is_server_url(database_url: str) -> bool:
    """Whether it names a database server and not a file."""
    return SCHEMES.get(scheme_of(database_url), "sqlite") != "sqlite"


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
