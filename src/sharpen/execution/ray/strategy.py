"""`RayExecutionStrategy`: runners as actors on a cluster of Ray, which reach the store over the network."""

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from ...checks import check_choice, check_installed, check_int, check_number
from ...errors import ConfigError
from ...store import LightningStore
from ..base import AlgorithmBundle, RunnerBundle, SupervisedStrategy, server_settings
from ..events import Reach
from .cluster import check_address, checked

if TYPE_CHECKING:
    from ..serving import Mount
    from ..supervisor import Bounds
    from .actors import Parcel

AlgorithmPlace = Literal["driver", "actor"]
GATEWAY_TOKEN = "SHARPEN_GATEWAY_TOKEN"


class RayExecutionStrategy(SupervisedStrategy):
    """Runners as actors on a Ray cluster: placed by resources, restarted when they die, scaled with the queue.

    `server_host`, `server_port` and `managed_store` default to the environment variables `SHARPEN_SERVER_HOST`,
    `SHARPEN_SERVER_PORT` and `SHARPEN_MANAGED_STORE`.

    Args:
        address: Address of the cluster. None uses the one that the program is connected to, that `RAY_ADDRESS` names,
            or that runs on this machine, and otherwise starts a local one; `"local"` always starts one.
        n_runners: Number of runners at the start.
        min_runners: Lower limit for scaling.
        max_runners: Upper limit for scaling.
        runner_resources: What a runner occupies on its node (default: one CPU).
        algorithm: `"actor"` runs the algorithm as an actor too, on this node or where its resources are.
        algorithm_resources: What the algorithm's actor occupies.
        runtime_env: Ray's runtime environment. Unless it has `working_dir` or `py_modules`, the modules next to the
            program are sent with the agent (`{"py_modules": []}` disables that).
        server_host: Address at which the store is served, always with a token (default: this node's address).
        server_port: Its port.
        managed_store: Whether this run serves the store; None decides by the store.
        idle_timeout: Seconds without work after which a runner above `min_runners` stops.
        placement_timeout: Seconds to wait for a node with enough resources before the run fails.
        graceful_timeout: Seconds that a runner has to stop before it is cancelled.
        terminate_timeout: Seconds after which a cancelled runner is killed.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        n_runners: int = 1,
        min_runners: int | None = None,
        max_runners: int | None = None,
        runner_resources: Mapping[str, float] | None = None,
        algorithm: AlgorithmPlace = "driver",
        algorithm_resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        managed_store: bool | None = None,
        idle_timeout: float = 30.0,
        placement_timeout: float = 30.0,
        graceful_timeout: float = 10.0,
        terminate_timeout: float = 10.0,
    ) -> None:
        super().__init__()
        check_installed("ray", extra="ray", feature="RayExecutionStrategy")
        if address is not None:
            check_address(address, is_asked=False)
        self.address = address
        self.n_runners = check_int("n_runners", n_runners, at_least=0 if min_runners == 0 else 1)
        self.min_runners, self.max_runners = _bounds(n_runners, min_runners, max_runners)
        self.runner_resources = checked("runner_resources", runner_resources, {"CPU": 1})
        self.algorithm = check_choice("algorithm", algorithm, ("driver", "actor"))
        self.algorithm_resources = _of_algorithm(algorithm, algorithm_resources)
        self.runtime_env = _checked_env(runtime_env)
        self.server_host, self.server_port, self.managed_store = server_settings(
            server_host, server_port, managed_store
        )
        self.idle_timeout = check_number("idle_timeout", idle_timeout, at_least=0, unit="seconds")
        self.placement_timeout = check_number("placement_timeout", placement_timeout, at_least=0, unit="seconds")
        self.graceful_timeout = check_number("graceful_timeout", graceful_timeout, at_least=0, unit="seconds")
        self.terminate_timeout = check_number("terminate_timeout", terminate_timeout, at_least=0, unit="seconds")
        self.mounts: Sequence[Mount] = ()
        """Other applications at the address of the store, where this run serves it."""

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        import ray

        from ..execution import Execution
        from ..serving import announced
        from ..supervisor import RunnerPlan
        from .actors import ActorContext, ActorOptions, ActorRunner, RemoteAlgorithm
        from .cluster import connected

        # What cannot travel is refused before anything starts.
        of_runner = self._pack(runner)
        of_algorithm = self._pack(algorithm) if self.algorithm == "actor" else None
        with connected(self.address, self.runtime_env) as cluster, _gateway_token() as secrets:
            host = self.server_host or cluster.host
            cluster.check_reach("server_host", host)
            managed, port, mounts = self.managed_store, self.server_port, self.mounts
            with announced(store, managed=managed, host=host, port=port, mounts=mounts) as served:
                cluster.check_reach("the address of the store", urlsplit(served.url).hostname or "")
                context = ActorContext(served.address, secrets)
                options = ActorOptions(context, cluster.node_id, cluster.runtime_env, self.placement_timeout)
                reach = Reach(host, GATEWAY_TOKEN)
                if of_algorithm is not None:
                    parcel = ray.put(of_algorithm)
                    algorithm = RemoteAlgorithm(algorithm, options, parcel, self.algorithm_resources, reach)
                grace = self.graceful_timeout
                limits = grace, self.terminate_timeout
                start = functools.partial(ActorRunner, options, ray.put(of_runner), self.runner_resources, limits)
                plan = RunnerPlan(start, self.n_runners, self._scaling(runner), self.max_runners)
                self._run(Execution(served, plan, algorithm, grace, grace, reach=reach))

    def _scaling(self, runner: RunnerBundle) -> "Bounds | None":
        from ..supervisor import Bounds

        if self.min_runners == self.max_runners:
            return None
        slots = getattr(getattr(runner, "runner", None), "concurrency", 1)
        return Bounds(self.min_runners, self.max_runners, slots, self.idle_timeout)

    def _pack(self, bundle: object) -> "Parcel":
        from ..transport import pack_modules, pack_with_modules

        data, modules = pack_with_modules(bundle)
        is_given = any(name in (self.runtime_env or {}) for name in ("working_dir", "py_modules"))
        return data, b"" if is_given else pack_modules(modules)


@contextlib.contextmanager
def _gateway_token() -> Iterator[dict[str, str]]:
    """The token of a gateway that the run may start, which agents read from their environment; one that is made for
    the run goes with it."""
    from ..serving import new_token

    is_given = GATEWAY_TOKEN in os.environ
    token = os.environ.setdefault(GATEWAY_TOKEN, new_token())
    try:
        yield {GATEWAY_TOKEN: token}
    finally:
        if not is_given:
            os.environ.pop(GATEWAY_TOKEN, None)


def _bounds(n_runners: int, low: int | None, high: int | None) -> tuple[int, int]:
    low = check_int("min_runners", n_runners if low is None else low, at_least=0)
    high = check_int("max_runners", n_runners if high is None else high, at_least=1)
    if not low <= n_runners <= high:
        raise ConfigError(
            f"n_runners is {n_runners}, min_runners {low} and max_runners {high}: a run starts with n_runners, so use "
            "min_runners <= n_runners <= max_runners"
        )
    return low, high


def _of_algorithm(place: str, amounts: Mapping[str, float] | None) -> dict[str, float] | None:
    if amounts is None:
        return None
    if place != "actor":
        raise ConfigError("algorithm_resources is set, but the algorithm runs in this process: use algorithm='actor'")
    return checked("algorithm_resources", amounts, {})


def _checked_env(runtime_env: object) -> dict[str, Any] | None:
    if runtime_env is None:
        return None
    if not isinstance(runtime_env, Mapping):
        raise ConfigError(f"runtime_env is {runtime_env!r}: pass a dict such as {{'env_vars': {{'NAME': 'value'}}}}")
    return dict(runtime_env)
