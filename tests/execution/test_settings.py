"""Where the settings of the client-server strategy come from."""

import inspect

import pytest

from sharpen.errors import ConfigError
from sharpen.execution import ClientServerExecutionStrategy, SharedMemoryExecutionStrategy
from tests.errors import raises


def test_the_defaults_are_the_known_ones():
    strategy = ClientServerExecutionStrategy()
    assert (strategy.role, strategy.server_host, strategy.server_port) == ("both", "127.0.0.1", None)
    assert (strategy.n_runners, strategy.main_process, strategy.managed_store) == (1, "algorithm", None)
    assert (strategy.graceful_timeout, strategy.terminate_timeout) == (10.0, 10.0)
    assert sorted(strategy.allowed_exit_codes) == [-15, 0]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            ClientServerExecutionStrategy,
            "role server_host server_port n_runners graceful_timeout terminate_timeout main_process managed_store "
            "allowed_exit_codes",
        ),
        (
            SharedMemoryExecutionStrategy,
            "n_runners main_thread join_timeout graceful_delay poll_interval managed_store",
        ),
    ],
)
def test_the_parameters_come_in_the_known_order(kind, names):
    assert list(inspect.signature(kind).parameters) == names.split()


def test_what_is_not_given_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("SHARPEN_CURRENT_ROLE", "runner")
    monkeypatch.setenv("SHARPEN_SERVER_HOST", "10.0.0.5")
    monkeypatch.setenv("SHARPEN_SERVER_PORT", "5151")
    monkeypatch.setenv("SHARPEN_MANAGED_STORE", "0")
    strategy = ClientServerExecutionStrategy()
    assert (strategy.role, strategy.server_host, strategy.server_port) == ("runner", "10.0.0.5", 5151)
    assert strategy.managed_store is False


def test_an_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("SHARPEN_CURRENT_ROLE", "runner")
    monkeypatch.setenv("SHARPEN_SERVER_HOST", "10.0.0.5")
    monkeypatch.setenv("SHARPEN_SERVER_PORT", "no port")
    monkeypatch.setenv("SHARPEN_MANAGED_STORE", "no")
    strategy = ClientServerExecutionStrategy("both", "127.0.0.1", 4848, managed_store=True)
    assert (strategy.role, strategy.server_host, strategy.server_port) == ("both", "127.0.0.1", 4848)
    assert strategy.managed_store is True


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHARPEN_CURRENT_ROLE", "runners"),
        ("SHARPEN_SERVER_PORT", "http"),
        ("SHARPEN_SERVER_PORT", "70000"),
        ("SHARPEN_MANAGED_STORE", "perhaps"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with raises(ConfigError, name, value):
        ClientServerExecutionStrategy()


@pytest.mark.parametrize("role", ["algorithm", "runner"])
def test_roles_apart_meet_at_a_known_port(role):
    assert ClientServerExecutionStrategy(role).server_port == 4747


@pytest.mark.parametrize(
    "settings",
    [
        {"role": "trainer"},
        {"server_port": 0},
        {"server_port": 65536},
        {"server_port": True},
        {"n_runners": 0},
        {"n_runners": 1.5},
        {"graceful_timeout": -1},
        {"terminate_timeout": float("inf")},
        {"main_process": "both"},
        {"main_process": "runner", "n_runners": 2},
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(settings):
    with raises(ConfigError, next(iter(settings))):
        ClientServerExecutionStrategy(**settings)
