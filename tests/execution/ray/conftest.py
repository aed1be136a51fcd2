"""A real cluster of several nodes for the tests of this folder; nothing of a run may be left in it."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ..processes import eventually

# Nodes that die are noticed soon, and no worker is started before it is needed.
SYSTEM = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
    "prestart_worker_first_driver": False,
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Three nodes: that of the program, `left` and `right`."""
    folder = tempfile.mkdtemp(prefix="ray-")  # its sockets lie there, whose paths must be short
    # The address is noted there as well, and not where a cluster of the user's own has noted its.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder}
    os.mkdir(os.path.join(folder, "ray"))
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "resources": {"head": 8}, "include_dashboard": False, "_system_config": SYSTEM}
    made = Cluster(initialize_head=True, head_node_args={**head, "temp_dir": folder})
    try:
        made.add_node(num_cpus=2, resources={"left": 8})
        made.add_node(num_cpus=2, resources={"right": 8})
        ray.init(address=made.address, include_dashboard=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No actor and no thread stays behind."""
    before = _threads()
    yield
    if "cluster" in request.fixturenames:
        eventually(lambda: not living_actors(), "no actor is left", 20)
    eventually(lambda: _threads() <= before, "no thread is left", 10)


def _threads() -> set[str]:
    """Those of runs; a store that the test has left open keeps its own."""
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if name.startswith("sharpen-") and name != "sharpen-watchdog"}


def all_actors() -> dict[str, dict[str, Any]]:
    """Also those that are dead."""
    from ray._private.state import actors

    found: dict[str, dict[str, Any]] = actors()
    return found


def living_actors(kind: str | None = None) -> list[dict[str, Any]]:
    """The actors of the cluster that live or wait for a place."""
    found = [each for each in all_actors().values() if each["State"] != "DEAD"]
    return [each for each in found if kind is None or each["ActorClassName"] == kind]


def node_with(resource: str) -> str:
    """The id of the node that has it."""
    import ray

    (node,) = [each for each in ray.nodes() if each["Alive"] and resource in each["Resources"]]
    found: str = node["NodeID"]
    return found
