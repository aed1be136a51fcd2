"""Dumps of the parts of a PostgreSQL and a Redis server that a store uses, and their way back into other servers."""

import base64
import subprocess
from typing import Any

from tests.store.servers import PostgresServer, RedisServer, find_program

SCHEMA, PREFIX = "compatibility", "compatibility"


def postgres_url(server: PostgresServer) -> str:
    return server.url(SCHEMA)


def redis_url(server: RedisServer) -> str:
    return f"{server.url()}?prefix={PREFIX}"


def dump_postgres(server: PostgresServer) -> str:
    """The schema as SQL statements that any client can run."""
    program = find_program("pg_dump", variable="POSTGRES_BIN", folders="/usr/lib/postgresql/*/bin")
    options = ["--inserts", "--no-owner", "--no-privileges", f"--schema={SCHEMA}", f"--dbname={server.url()}"]
    dumped = subprocess.run([program, *options], capture_output=True, text=True, check=True).stdout
    return "".join(line for line in dumped.splitlines(keepends=True) if not line.startswith("\\"))  # of psql


def load_postgres(server: PostgresServer, dump: str) -> None:
    """Replace what the schema holds."""
    server.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    server.execute(dump)
    server.execute("RESET ALL")  # the dump sets a search path of its own


def dump_redis(server: RedisServer) -> list[dict[str, Any]]:
    """Every key that does not expire, with its values by the type of the key: readable for servers of any version."""
    with _client(server) as client:
        return [_entry(client, key) for key in sorted(client.scan_iter()) if client.ttl(key) == -1]


def load_redis(server: RedisServer, dump: list[dict[str, Any]]) -> None:
    """Replace what the server holds."""
    with _client(server) as client:
        client.flushall()
        for entry in dump:
            _restore(client, entry["type"], _bytes(entry["key"]), entry["value"])


def _client(server: RedisServer) -> Any:
    import redis

    return redis.Redis.from_url(server.url())


def _entry(client: Any, key: bytes) -> dict[str, Any]:
    kind = client.type(key).decode()
    if kind == "string":
        value: Any = _text(client.get(key))
    elif kind == "hash":
        value = sorted([_text(name), _text(each)] for name, each in client.hgetall(key).items())
    elif kind == "list":
        value = [_text(each) for each in client.lrange(key, 0, -1)]
    elif kind == "set":
        value = sorted(_text(each) for each in client.smembers(key))
    elif kind == "zset":
        value = [[_text(each), score] for each, score in client.zrange(key, 0, -1, withscores=True)]
    else:
        raise NotImplementedError(f"{key!r} is a {kind}")
    return {"key": _text(key), "type": kind, "value": value}


def _restore(client: Any, kind: str, key: bytes, value: Any) -> None:
    if kind == "string":
        client.set(key, _bytes(value))
    elif kind == "hash":
        client.hset(key, mapping={_bytes(name): _bytes(each) for name, each in value})
    elif kind == "list":
        client.rpush(key, *map(_bytes, value))
    elif kind == "set":
        client.sadd(key, *map(_bytes, value))
    else:
        client.zadd(key, {_bytes(each): score for each, score in value})


def _text(value: bytes) -> str:
    """As it is where it is UTF-8, in base64 otherwise."""
    try:
        return "t" + value.decode()
    except UnicodeDecodeError:
        return "b" + base64.b64encode(value).decode()


def _bytes(value: str) -> bytes:
    return value[1:].encode() if value[0] == "t" else base64.b64decode(value[1:])
