"""Where a store keeps its things: a SQLite file, a schema of a PostgreSQL server, a prefix of a Redis server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.store.internals import LocalStore, open_url

from .servers import PostgresServer, RedisServer, Server, postgres_server, redis_server


@dataclass
class Database:
    """One place, empty at first, that any number of stores and processes may open."""

    url: str
    server: Server | None = None
    """The server that keeps it; None for a file."""
    schema: str | None = None

    def open(self, **options: Any) -> LocalStore:
        store = open_url(self.url, **options)
        assert isinstance(store, LocalStore)
        return store

    def give_back(self) -> None:
        """Nobody needs it any more, and all stores in it are closed."""
        if isinstance(self.server, PostgresServer) and self.schema is not None:
            self.server.take_back(self.schema)


def in_file(folder: Path) -> Database:
    return Database(str(folder / "store.db"))


def in_server(server: Server) -> Database:
    """A part of this server that nobody uses."""
    if isinstance(server, PostgresServer):
        schema = server.lend_schema()
        return Database(server.url(schema), server, schema)
    assert isinstance(server, RedisServer)
    return Database(f"{server.url()}?prefix={server.new_prefix()}", server)


@contextmanager
def own_database(kind: str, folder: Path) -> Iterator[Database]:
    """A database that may be killed: its server is nobody else's, and gone when the block ends."""
    if kind == "sqlite":
        yield in_file(folder)
        return
    with {"postgres": postgres_server, "redis": redis_server}[kind]() as server:
        yield in_server(server)
