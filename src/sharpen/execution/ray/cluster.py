"""The cluster of a run: its connection, what an actor asks of a node, and waiting for a place.

The cluster is the one that the program is connected to, one that is found, or one of this machine alone. Only a
connection that was made here is closed again. Nothing that is started here sends usage statistics.

A cluster that is full is waited for, since others may leave. A place that no node has could come only with a new node:
that is waited for within bounds, and then it is an error.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...checks import is_number
from ...errors import ConfigError, RunnerStartError
from ...http.proxies import is_loopback

log = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 10.0
EVERYWHERE = ("0.0.0.0", "::")
LOOK_SECONDS = 1.0
REMIND_SECONDS = 30.0
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
_HIDDEN = ("node:", "object_store_memory", "memory")
_NO_NODE = (
    "a Ray client runs outside the cluster, so its store cannot be reached from there: run the program on a node of "
    "the cluster, for example with `ray job submit`"
)
RuntimeEnv = Mapping[str, Any]
Amounts = Mapping[str, float]


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
        hosts = {node["NodeManagerAddress"] for node in nodes()}
        away = sorted(each for each in hosts if not is_loopback(each) and each != self.host)
        if is_loopback(host) and not is_loopback(self.host) and away:
            raise ConfigError(
                f"{name} is {host!r}, which the other nodes of the cluster ({', '.join(away[:3])}) cannot reach: use "
                "an address at which they can reach this machine"
            )


def nodes() -> list[dict[str, Any]]:
    """Return the nodes that are alive."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


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


# -- what an actor asks of its node ------------------------------------------------------------------


def checked(name: str, amounts: object, default: Amounts) -> dict[str, float]:
    """Return the amounts that were given, or the default."""
    if amounts is None:
        return dict(default)
    if not isinstance(amounts, Mapping):
        raise ConfigError(f"{name} is {amounts!r}: pass a dict such as {{'CPU': 1, 'GPU': 0.5}}")
    for key, amount in amounts.items():
        if not isinstance(key, str) or not is_number(amount) or amount < 0:
            raise ConfigError(f"{name} has {key!r}: {amount!r}: use the name of a resource and a number of at least 0")
        if key == "GPU" and amount > 1 and amount != int(amount):
            raise ConfigError(f"{name} asks for {amount} GPUs: above 1, Ray only assigns whole GPUs")
    return {key: float(amount) for key, amount in amounts.items()}


def options_for(amounts: Amounts) -> dict[str, Any]:
    """Return the amounts as options of an actor. What is not named is not held: an actor without CPUs takes none."""
    options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 0}
    options |= {_OPTIONS[name]: amount for name, amount in amounts.items() if name in _OPTIONS}
    others = {name: amount for name, amount in amounts.items() if name not in _OPTIONS and amount}
    return options | ({"resources": others} if others else {})


def fits(wanted: Amounts, node: Amounts) -> bool:
    """Whether a node that nobody else uses could hold it."""
    return all(amount <= node.get(name, 0) for name, amount in wanted.items())


def describe(amounts: Amounts, wanted: Iterable[str] = ()) -> str:
    """Return the amounts for people: without what every node has and nobody asked for."""
    shown = {key: value for key, value in amounts.items() if key in set(wanted) or not key.startswith(_HIDDEN)}
    return ", ".join(f"{key}: {value:g}" for key, value in sorted(shown.items())) or "nothing"


# -- waiting for a place -----------------------------------------------------------------------------


class Patience:
    """How long an actor is waited for, and what is said meanwhile. `setting` is where its `wanted` resources stand."""

    def __init__(self, who: str, wanted: Amounts, setting: str, placement_timeout: float) -> None:
        self._who, self._wanted, self._setting = who, wanted, setting
        self._seconds = placement_timeout
        self._began = self._said = time.monotonic()
        self._nowhere_since: float | None = None

    async def wait(self, asked: Any) -> Any:
        """Return the answer to the first call of the actor, once there is one."""
        answer = asyncio.wrap_future(asked.future())
        try:
            while not (await asyncio.wait([answer], timeout=LOOK_SECONDS))[0]:
                await asyncio.to_thread(self.check)
            return answer.result()
        finally:
            answer.cancel()

    def check(self) -> None:
        """An error where there will be no place."""
        now, there = time.monotonic(), nodes()
        if any(fits(self._wanted, node["Resources"]) for node in there):
            self._nowhere_since = None
            self._remind(now)
            return
        found = "; ".join(
            f"{node['NodeManagerAddress']} has {describe(node['Resources'], self._wanted)}" for node in there[:5]
        )
        more = f"; and {len(there) - 5} more" if len(there) > 5 else ""
        words = (
            f"no node of the Ray cluster can hold {self._who}, which needs {describe(self._wanted, self._wanted)} "
            f"({found}{more})"
        )
        if self._nowhere_since is None:
            self._nowhere_since = now
            log.warning("%s; waiting %g s for such a node", words, self._seconds)
        if now - self._nowhere_since >= self._seconds:
            raise RunnerStartError(
                f"{words}: request less in {self._setting}, or add such a node; none appeared within "
                f"{self._seconds:g} s (placement_timeout)"
            )

    def _remind(self, now: float) -> None:
        if now - self._said >= REMIND_SECONDS:
            import ray

            self._said = now
            free = describe(ray.available_resources(), self._wanted)
            words = "%s has been waiting %.0f s for a node with %s and for its environment; free in the cluster: %s"
            log.warning(words, self._who, now - self._began, describe(self._wanted, self._wanted), free)
