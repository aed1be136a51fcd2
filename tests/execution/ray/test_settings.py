"""What a strategy is given: wrong values are refused in words, before anything starts."""

import sys

import pytest

from sharpen.errors import ConfigError, MissingExtraError
from sharpen.execution import RayExecutionStrategy
from tests.errors import raises
from tests.execution.internals import checked, fits, options_for


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises(MissingExtraError, "ray", "sharpen[ray]"):
        RayExecutionStrategy()


@pytest.mark.ray
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"n_runners": 4, "max_runners": 2}, ("min_runners", "n_runners", "max_runners")),
        ({"n_runners": 0}, ("n_runners",)),
        ({"runner_resources": {"CPU": -1}}, ("runner_resources", "CPU", -1)),
        ({"algorithm": "elsewhere"}, ("algorithm",)),
        ({"algorithm_resources": {"GPU": 1}}, ("algorithm='actor'",)),
        ({"runtime_env": "a text"}, ("runtime_env", "a text")),
        ({"server_port": 0}, ("server_port",)),
        ({"address": "ray://10.1.2.3:10001"}, ("address",)),
        ({"address": "somewhere"}, ("host:port",)),
        ({"idle_timeout": -1}, ("idle_timeout",)),
    ],
)
def test_a_wrong_setting_is_refused(given, named):
    with raises(ConfigError, *named):
        RayExecutionStrategy(**given)


@pytest.mark.parametrize("given", [[1], {"GPU": 1.5}, {"CPU": True}, {1: 1}, {"CPU": float("nan")}])
def test_resources_that_cannot_be_are_refused(given):
    with raises(ConfigError, "runner_resources"):
        checked("runner_resources", given, {})


def test_resources_are_options_of_an_actor():
    assert options_for({"CPU": 2, "GPU": 0.5, "tpu": 1, "none": 0}) == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "resources": {"tpu": 1},
    }
    assert options_for({"memory": 100}) == {"num_cpus": 0, "num_gpus": 0, "memory": 100}


def test_a_node_holds_what_it_has_enough_of():
    assert fits({"CPU": 1, "GPU": 0}, {"CPU": 2})
    assert not fits({"CPU": 1, "GPU": 1}, {"CPU": 2})
