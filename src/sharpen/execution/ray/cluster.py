"""The cluster of a run: the one that the program is connected to, one that is found, or one of this machine alone.

Only a connection that was made here is closed again. Nothing that is started here counts its use for anybody.
"""

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ...errors import ConfigError, MissingExtraError
from ...http.proxies import is_loopback

log = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 10.0
EVERYWHERE = ("0.0.0.0", "::")
_NO_NODE = (
    "a Ray client runs outside the cluster, so its store cannot be reached from there: run the program on a node of "
    "the cluster, for example with `ray job submit`"
)
RuntimeEnv = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The cluster as the program sees it. `host` is the address by which other nodes know its node, and `runtime_env`
    what actors still have to be given."""

    node_id: str
    host: str
    runtime_env: dict[str, Any] | None

    def check_reach(self, name: str, host: str) -> None:
        """Runners on other machines must find what they are to connect to."""
        if host in EVERYWHERE:
            raise ConfigError(f"{name} is {host!r}: use an address that other nodes can reach, such as {self.host!r}")
        away = sorted(each for each in _hosts() if not is_loopback(each) and each != self.host)
        if is_loopback(host) and not is_loopback(self.host) and away:
            raise ConfigError(
                f"{name} is {host!r}, which the other nodes of the cluster ({', '.join(away[:3])}) cannot reach: use "
                "an address at which they can reach this machine"
            )

    def check_url(self, url: str) -> None:
        self.check_reach("the address of the store", urlsplit(url).hostname or "")


def nodes() -> list[dict[str, Any]]:
    """The nodes that live."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _hosts() -> set[str]:
    return {node["NodeManagerAddress"] for node in nodes()}


def check_installed() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise MissingExtraError.of("ray", extra="ray", feature="RayExecutionStrategy")


@contextlib.contextmanager
def connected(address: str | None, runtime_env: RuntimeEnv | None) -> Iterator[Cluster]:
    """Connected to the cluster; a connection of the user's own stays as it is."""
    # An empty list of modules says that none travel, which Ray does not understand.
    given = {name: value for name, value in (runtime_env or {}).items() if value != []} or None
    is_first = _own.enter(address, given)
    try:
        here = this_node(None if is_first else given)
        yield dataclasses.replace(here, host=LOOPBACK) if _own.is_local else here
    finally:
        _own.leave()


class _OwnConnection:
    """The connection that runs of this process have made, as long as one of them needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self.is_local = False
        self._on_sigterm: Any = None

    def enter(self, address: str | None, runtime_env: dict[str, Any] | None) -> bool:
        """Whether it is made now, with this environment; one that is there must be that of the address."""
        import ray

        with self._lock:
            if ray.is_initialized():
                _check_same(address)
                self._users += self._users > 0
                return False
            is_main = threading.current_thread() is threading.main_thread()
            self._on_sigterm = signal.getsignal(signal.SIGTERM) if is_main else None
            try:
                self.is_local = _connect(address, runtime_env)
            except BaseException:
                self._end()
                raise
            self._users = 1
            return True

    def leave(self) -> None:
        with self._lock:
            if self._users:
                self._users -= 1
                if not self._users:
                    self._end()

    def _end(self) -> None:
        import ray

        ray.shutdown()
        self.is_local = False
        # Ray has taken over SIGTERM when it started: now it is the program's again.
        if self._on_sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)


_own = _OwnConnection()


def _check_same(address: str | None) -> None:
    import ray

    if ray.util.client.ray.is_connected():
        raise ConfigError(f"this program is a client of Ray (ray://): {_NO_NODE}")
    there = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local", there):
        raise ConfigError(
            f"address is {address!r}, but this program is connected to the Ray cluster at {there!r}: omit "
            "address, or call ray.shutdown() first"
        )


def this_node(runtime_env: dict[str, Any] | None = None) -> Cluster:
    """The cluster, seen from the node of this process."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    host = next(node["NodeManagerAddress"] for node in nodes() if node["NodeID"] == node_id)
    return Cluster(node_id, host, runtime_env)


def _connect(address: str | None, runtime_env: dict[str, Any] | None) -> bool:
    """Without an address: the cluster that RAY_ADDRESS names or that runs here, else one of this machine alone. Whether
    it is such a one, which no other machine can join."""
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    if where != "local":
        check_address(where)
        try:
            _init(where, runtime_env)
            return False
        except ConnectionError as error:
            if address is not None or where != "auto":
                raise ConfigError(f"cannot connect to a Ray cluster at {where!r}: {error}") from error
    _init("local", runtime_env)
    log.info("started a local Ray cluster; pass address= to use another one")
    return True


def check_address(address: str, *, is_asked: bool = True) -> None:
    """Ray itself would try an address where nobody listens for minutes."""
    if address.startswith("ray://"):
        raise ConfigError(f"address is {address!r}: {_NO_NODE}")
    host, _, port = address.rpartition(":")
    if address in ("auto", "local"):
        return
    if not host or not port.isdecimal():
        raise ConfigError(f"address is {address!r}: use host:port, 'auto' or 'local'")
    if is_asked:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise ConfigError(f"cannot connect to a Ray cluster at {address!r}: {error}") from error


def _init(address: str, runtime_env: dict[str, Any] | None) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, include_dashboard=False, logging_level=logging.ERROR, runtime_env=runtime_env)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"Ray rejected address {address!r} or the runtime_env: {error}") from error
