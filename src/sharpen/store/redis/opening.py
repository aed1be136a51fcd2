"""The start of a store in Redis: whether the server can carry it, whose store it is, and what a crash would lose."""

import re
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from ...errors import InvalidInputError, StoreError, StoreFileError
from ..checks import new_id
from .connection import SOCKET_SECONDS, Connection
from .scripts import TRIAL

OLDEST = (6, 2)
LAYOUT = 1

NOT_LOGGED = (
    "{where} has no append-only file (appendonly no). If it crashes or restarts, everything since its last snapshot is "
    "lost (without snapshots, everything): rollouts, spans, rewards and work in progress. "
    "Start it with --appendonly yes to keep them"
)
EVERY_SECOND = (
    "{where} syncs its append-only file once a second (appendfsync everysec): a crash of redis-server loses no "
    "acknowledged write, a loss of power up to one second of writes. Use appendfsync always to lose nothing"
)
ALWAYS = "{where} syncs its append-only file before it responds (appendfsync always): a crash loses nothing"
NEVER = (
    "{where} lets the operating system sync its append-only file (appendfsync no): a crash of redis-server loses no "
    "acknowledged write, a loss of power about 30 seconds of writes. Use appendfsync always to lose nothing"
)
NOT_TOLD = (
    "{where} does not allow this user to read its settings (CONFIG GET), so it is unknown what a crash would lose: "
    "without --appendonly yes, everything since the last snapshot"
)
EVICTS = (
    "{where} evicts keys when its memory is full (maxmemory-policy {policy}), which silently deletes rollouts. "
    "Set maxmemory-policy noeviction"
)


def check_prefix(prefix: Any) -> str:
    if not isinstance(prefix, str) or not re.fullmatch(r"[^\s{}]{1,100}", prefix):
        raise InvalidInputError(f"prefix is {prefix!r}: use a string of 1 to 100 characters without spaces and braces")
    return prefix


def check_server(connection: Connection) -> None:
    """Refuse a server that cannot carry a store."""
    where = f"Redis at {connection.address.text}"
    found = str(connection.again(lambda: connection.client.info("server")).get("redis_version", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise StoreError(f"{where} is version {found}: version {oldest} or newer is required")
    connection.again(lambda: _load_scripts(connection, where))


def _load_scripts(connection: Connection, where: str) -> None:
    try:
        connection.load_scripts()
    except ResponseError as error:
        words = connection.address.without_secrets(str(error))
        raise StoreError(
            f"{where} does not allow this user to run scripts (SCRIPT, EVALSHA), which a store needs: {words}"
        ) from None


def check_rights(connection: Connection) -> None:
    """Refuse a user who may not do everything that a store does, before it does any of it."""
    missing = [_text(each) for each in connection.run(TRIAL)]
    if missing := missing + connection.again(lambda: _unheard(connection)):
        where, words = f"Redis at {connection.address.text}", "; ".join(missing)
        raise StoreError(f"the user in the URL lacks permissions that a store needs in {where}: {words}")


def _unheard(connection: Connection) -> list[str]:
    """Why this user may not listen where those who wait do. No script can try that."""
    try:
        with connection.client.pubsub() as channel:  # type: ignore[no-untyped-call]
            channel.subscribe(connection.key("work:trial"), connection.key("finished"))
            channel.get_message(timeout=SOCKET_SECONDS)
    except NoPermissionError as error:
        return [f"SUBSCRIBE: {connection.address.without_secrets(str(error))}"]
    return []


def open_store(connection: Connection, *, read_only: bool) -> str:
    """The id of the store under this prefix, which is made where there is none; a foreign or newer one is refused."""
    key, where = connection.key("meta"), f"{connection.root[1:-2]!r} in Redis at {connection.address.text}"
    (kind,) = connection.at_once(("TYPE", key))
    if kind not in (b"hash", b"none"):
        raise StoreFileError(f"the prefix {where} is used by something other than a store: choose another prefix")
    if not read_only:
        connection.at_once(("HSETNX", key, "layout", LAYOUT), ("HSETNX", key, "store_id", new_id("st")))
    layout, store_id = connection.at_once(("HMGET", key, "layout", "store_id"))[0]
    if layout is None or store_id is None:
        raise StoreFileError(f"no store exists under the prefix {where}: open it without read_only=True to create one")
    if int(layout) > LAYOUT:
        raise StoreFileError(
            f"the store under the prefix {where} has layout {int(layout)}, but this Sharpen supports up to {LAYOUT}: "
            "upgrade Sharpen"
        )
    found: str = store_id.decode()
    return found


def durability(connection: Connection) -> tuple[str, bool]:
    """What a crash of the server would lose, in words, and whether that is worth a warning."""
    where = f"Redis at {connection.address.text}"
    settings = connection.again(lambda: _settings(connection))
    if settings is None:
        return NOT_TOLD.format(where=where), True
    told = {_text(name): _text(value) for name, value in settings.items()}
    if told.get("appendonly") != "yes":
        words, is_bad = NOT_LOGGED, True
    else:
        words = {"always": ALWAYS, "no": NEVER}.get(told.get("appendfsync", ""), EVERY_SECOND)
        is_bad = words is NEVER
    policy = told.get("maxmemory-policy", "noeviction")
    if told.get("maxmemory", "0") != "0" and policy != "noeviction":
        words, is_bad = f"{words}. {EVICTS}", True
    return words.format(where=where, policy=policy), is_bad


def _settings(connection: Connection) -> dict[Any, Any] | None:
    """What a crash depends on; None where this user may not read it."""
    try:
        found: dict[Any, Any] = connection.client.config_get(
            "appendonly", "appendfsync", "maxmemory", "maxmemory-policy"
        )
        return found
    except ResponseError:
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
