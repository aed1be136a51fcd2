"""A connection to Redis that survives its loss: calls are made again until they are answered or the time is over.

Every call here may be made twice without harm: a script that changes something knows what it has applied before. At
the end, what a server must be able to do to carry a store, and what its crash would lose.
"""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from ...errors import (
    InvalidInputError,
    MissingExtraError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    StoreWriteError,
)
from .scripts import ALL, SHA, TRIAL

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AuthenticationError,
        AuthorizationError,
        ConnectionError as RedisConnectionError,
        MasterDownError,
        NoPermissionError,
        NoScriptError,
        ResponseError,
        TimeoutError as RedisTimeoutError,
    )
    from redis.retry import Retry
except ImportError as error:
    raise MissingExtraError.of("redis", extra="redis", feature="RedisLightningStore") from error

log = logging.getLogger(__name__)

T = TypeVar("T")
Call = tuple[Any, ...]
SCHEMES = ("redis", "rediss", "unix")
SOCKET_SECONDS = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
_UNREADABLE = (
    "the Redis URL is not valid: use redis://user:password@host:6379/0 with a number as the port, and percent-encode "
    "special characters (/ ? # @ [), for example / as %2F"
)
_FULL = re.compile(r"\b(OOM|maxmemory)\b")
_NOT_WRITABLE = re.compile(r"\b(MISCONF|READONLY|NOREPLICAS|read only replica)\b")


class _Wire(redis.Connection):
    """A connection that is not to itself.

    Who knocks again and again at a port of this machine where nobody listens may be given that port for its own end:
    it would then talk to itself, and the server could never come back.
    """

    def _connect(self) -> Any:
        sock = super()._connect()  # type: ignore[no-untyped-call]
        if sock.getsockname() == sock.getpeername():
            sock.close()
            raise ConnectionRefusedError("connection refused")
        return sock


class Address:
    """Where the server is. Its text has neither user nor password, so that it may stand in messages."""

    def __init__(self, url: str) -> None:
        self._url, parts = _read(url)
        quoted = parts.password or ""
        secrets = [quoted, unquote(quoted), *parse_qs(parts.query).get("password", [])]
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self.text = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self.pool()  # an option that is unknown

    def pool(self) -> "redis.ConnectionPool":
        try:
            plain = {"connection_class": _Wire} if self._url.startswith("redis://") else {}
            return redis.ConnectionPool.from_url(
                self._url,
                **plain,
                protocol=2,
                retry=Retry(NoBackoff(), 0),  # calls are made again here, where the time is counted
                socket_timeout=SOCKET_SECONDS,
                socket_connect_timeout=SOCKET_SECONDS,
                health_check_interval=0,
            )
        except (ValueError, TypeError, AttributeError) as error:
            words = self.without_secrets(str(error))
            raise InvalidInputError(f"the Redis URL {self.text!r} is not valid: {words}") from None

    def without_secrets(self, words: str) -> str:
        for secret in self._secrets:
            words = words.replace(secret, "***")
        return words

    def __repr__(self) -> str:
        return f"Address({self.text!r})"


def _read(url: object) -> tuple[str, SplitResult]:
    """A URL with its scheme in small letters, and its parts. One that cannot be read is not quoted: nobody knows where
    in it the password is."""
    scheme, sign, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not sign or scheme.lower() not in SCHEMES:
        raise InvalidInputError(
            f"the Redis URL begins with {_beginning(url)!r}: use redis://, rediss:// or unix://, "
            "for example redis://localhost:6379/0"
        )
    text = f"{scheme.lower()}://{rest}"
    try:
        parts = urlsplit(text)
        is_readable = parts.port != 0 and not _is_cut_in_password(parts)
    except ValueError:  # its words quote the URL
        is_readable = False
    if not is_readable:
        raise InvalidInputError(_UNREADABLE)
    return text, parts


def _is_cut_in_password(parts: SplitResult) -> bool:
    """Whether an @ stands behind the host: what was taken for the host is then the beginning of a password.

    The path of a socket may hold one, where nothing stands before the path.
    """
    host = parts.netloc.rpartition("@")[2]
    is_path = parts.scheme == "unix" and not host
    return not is_path and "@" in f"{parts.path}{parts.query}{parts.fragment}"


def _beginning(url: object) -> str:
    """So much of something that is no address as holds no password."""
    return url.rpartition("@")[2].partition(":")[0][:20] if isinstance(url, str) else type(url).__name__


class Connection:
    """Calls to one Redis server under one prefix, from any thread."""

    def __init__(self, address: Address, prefix: str, *, busy_seconds: float) -> None:
        self.address = address
        self.place = f"Redis at {address.text}"
        """Where it is, in words that anybody may read."""
        self.root = f"{{{prefix}}}:"
        self.busy_seconds = busy_seconds
        self.is_closing = threading.Event()
        self._pool = address.pool()
        self._idle: deque[Any] = deque()
        self.client = redis.Redis(connection_pool=self._pool)

    def key(self, name: str) -> str:
        return self.root + name

    def run(self, script: str, *values: Any) -> Any:
        """Run a script, once or again until it is answered."""
        return self.at_once(self.script(script, *values))[0]

    def script(self, script: str, *values: Any) -> Call:
        """A script as one of several commands."""
        return "EVALSHA", SHA[script], 1, self.root, *values

    def at_once(self, *calls: Call) -> list[Any]:
        """Run several commands in one trip; others may come between them."""
        return self.again(lambda: self._exchange(calls))

    def together(self, *calls: Call) -> list[Any]:
        """Run several commands in one step: nobody else's stand between them."""
        answers: list[Any] = self.at_once(("MULTI",), *calls, ("EXEC",))[-1]
        return answers

    def _exchange(self, calls: Sequence[Call]) -> list[Any]:
        """Over one connection, as the client does it, without what the client does beside it at every call."""
        try:
            wire = self._idle.pop()
        except IndexError:
            wire = self._pool.make_connection()
        try:
            wire.send_packed_command(wire.pack_commands(calls))
            answers = [_answer(wire) for _ in calls]
        except BaseException:
            wire.disconnect()  # an answer that nobody reads must not be taken for the next one
            raise
        finally:
            self._idle.append(wire)
        if self.is_closing.is_set():
            self._disconnect()
        for answer in answers:
            if isinstance(answer, redis.RedisError):
                raise answer
        return answers

    def again(self, call: Callable[[], T]) -> T:
        """Make a call until it is answered, for `busy_seconds` at most."""
        end, pause, is_unknown = time.monotonic() + self.busy_seconds, FIRST_PAUSE, False
        while True:
            try:
                if is_unknown:
                    self.load_scripts()
                return call()
            except redis.RedisError as error:
                is_unknown = isinstance(error, NoScriptError)  # a server that has been restarted knows none
                if is_unknown and time.monotonic() < end:
                    continue
                if not _may_pass(error) or time.monotonic() >= end or self.is_closing.wait(pause):
                    raise self.translated(error) from None
                pause = min(pause * 2, LONGEST_PAUSE)

    def load_scripts(self) -> None:
        for script in ALL:
            self.client.script_load(script)

    def words(self, error: Exception) -> str:
        """What the server or the client says, without any password."""
        return self.address.without_secrets(str(error))

    def translated(self, error: "redis.RedisError") -> StoreError:
        """The same in our words, without any password."""
        where, words = self.place, self.words(error)
        if isinstance(error, AuthenticationError | AuthorizationError):
            return StoreError(f"{where} rejected the user or the password in its URL: {words}")
        if isinstance(error, NoPermissionError):
            return _lacks_rights(where, words)
        if isinstance(error, RedisConnectionError | RedisTimeoutError):
            return StoreUnavailableError(f"{where} does not respond: {words}")
        if _FULL.search(words):
            return StoreFullError(f"{where} is out of memory: {words}")
        if _NOT_WRITABLE.search(words):
            return StoreWriteError(f"{where} cannot be written at the moment: {words}")
        return StoreError(f"{where} failed: {words}")

    def close(self) -> None:
        self.is_closing.set()
        self._disconnect()
        self._pool.disconnect(inuse_connections=False)  # a thread that still uses one closes it itself

    def _disconnect(self) -> None:
        while self._idle:
            self._idle.pop().disconnect()


def _answer(wire: Any) -> Any:
    """One answer; what a command was refused for is an answer as well."""
    try:
        return wire.read_response()
    except ResponseError as error:
        return error


def _may_pass(error: "redis.RedisError") -> bool:
    if isinstance(error, AuthenticationError | AuthorizationError):
        return False
    passing = RedisConnectionError | RedisTimeoutError | MasterDownError
    return isinstance(error, passing) or str(error).startswith("BUSY")


# -- whether a server can carry a store, and what its crash would lose ---------------------------------

OLDEST_VERSION = (6, 2)
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


def check_server(connection: Connection) -> None:
    """Refuse a server that cannot carry a store."""
    found = str(connection.again(lambda: connection.client.info("server")).get("redis_version", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise StoreError(f"{connection.place} is version {found}: version {oldest} or newer is required")
    connection.again(lambda: _load_scripts(connection))


def _load_scripts(connection: Connection) -> None:
    try:
        connection.load_scripts()
    except ResponseError as error:
        raise StoreError(
            f"{connection.place} does not allow this user to run scripts (SCRIPT, EVALSHA), which a store needs: "
            f"{connection.words(error)}"
        ) from None


def check_rights(connection: Connection) -> None:
    """Refuse a user who may not do everything that a store does, before it does any of it."""
    missing = [_text(each) for each in connection.run(TRIAL)]
    if missing := missing + connection.again(lambda: _unheard(connection)):
        raise _lacks_rights(connection.place, "; ".join(missing))


def _lacks_rights(where: str, words: str) -> StoreError:
    return StoreError(f"the user in the URL lacks permissions that a store needs in {where}: {words}")


def _unheard(connection: Connection) -> list[str]:
    """Why this user may not listen where those who wait do. No script can try that."""
    try:
        with connection.client.pubsub() as channel:  # type: ignore[no-untyped-call]
            channel.subscribe(connection.key("work:trial"), connection.key("finished"))
            channel.get_message(timeout=SOCKET_SECONDS)
    except NoPermissionError as error:
        return [f"SUBSCRIBE: {connection.words(error)}"]
    return []


def durability(connection: Connection) -> tuple[str, bool]:
    """What a crash of the server would lose, in words, and whether that is worth a warning."""
    settings = connection.again(lambda: _settings(connection))
    if settings is None:
        return NOT_TOLD.format(where=connection.place), True
    told = {_text(name): _text(value) for name, value in settings.items()}
    if told.get("appendonly") != "yes":
        words, is_bad = NOT_LOGGED, True
    else:
        words = {"always": ALWAYS, "no": NEVER}.get(told.get("appendfsync", ""), EVERY_SECOND)
        is_bad = words is NEVER
    policy = told.get("maxmemory-policy", "noeviction")
    if told.get("maxmemory", "0") != "0" and policy != "noeviction":
        words, is_bad = f"{words}. {EVICTS}", True
    return words.format(where=connection.place, policy=policy), is_bad


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
