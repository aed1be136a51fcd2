"""The simulator of the queue, against what queueing theory knows exactly."""

import dataclasses
import sys
from math import factorial
from pathlib import Path

import pytest

from tests.errors import raises

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from queue_plan import Cost, Costs, Plan  # noqa: E402
from queue_simulator import simulate  # noqa: E402

FREE = Costs()
COSTLY = Costs(
    enqueue=Cost(0.0001, 0.0002, 0.0001, 1.0),
    turn=Cost(0.0004, 0.001, 0.0005, 1.0),
    poll=Cost(0.0002, 0.0004, 0.0002),
    wake=Cost(0.0002, 0.0003, 0.0002, 1.0),
    heartbeat=Cost(0.0001, 0.0003, 0.0001, 1.0),
    commit_seconds=0.0005,
    notifies_in_turn=True,
)


def queue(runners: int, rate: float, seconds: float) -> Plan:
    """Runners as the servers of a queue, a store that costs nothing: items come at random, agents end at random."""
    return Plan(
        runners, 1.0, FREE, agent_shape="exponential", rate=rate, latency_seconds=0, poll_seconds=1e6,
        warm_up_seconds=200, seconds=seconds,
    )  # fmt: skip


def erlang_c(servers: int, offered: float) -> float:
    """The share of items that have to wait in a queue with several servers."""
    last = offered**servers / factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**n / factorial(n) for n in range(servers)) + last)


def repairman(runners: int, think: float, service: float) -> float:
    """Turns a second of runners that share one server (exact mean value analysis)."""
    length = rate = 0.0
    for number in range(1, runners + 1):
        seconds = service * (1 + length)
        rate = number / (think + seconds)
        length = rate * seconds
    return rate


def test_one_runner_makes_items_wait_as_one_server_does() -> None:
    seen = simulate(queue(1, 0.5, 10_000))

    assert seen.wait_mean_ms == pytest.approx(0.5 / (1 - 0.5) * 1000, rel=0.1)
    assert seen.runners_busy == pytest.approx(0.5, rel=0.03)


def test_several_runners_make_items_wait_as_several_servers_do() -> None:
    seen = simulate(queue(4, 3.0, 3_000))

    assert seen.wait_mean_ms == pytest.approx(erlang_c(4, 3.0) / (4 - 3.0) * 1000, rel=0.15)
    assert seen.runners_busy == pytest.approx(0.75, rel=0.03)


def test_runners_that_share_a_server_turn_as_often_as_theory_says() -> None:
    costs = Costs(turn=Cost(server=0.1))
    plan = Plan(
        10, 1.0, costs, agent_shape="exponential", service_shape="exponential", latency_seconds=0,
        warm_up_seconds=20, seconds=400,
    )  # fmt: skip

    # The simulator splits a request's work into two visits, each half as long; the theory holds for that too.
    assert simulate(plan).rollouts_per_second == pytest.approx(repairman(10, 1.0, 0.1), rel=0.03)


def test_a_part_is_busy_for_the_share_that_its_work_makes() -> None:
    seen = simulate(Plan(20, 0.1, COSTLY, agent_shape="constant", heartbeat_seconds=1.0, warm_up_seconds=2, seconds=10))

    server = seen.rollouts_per_second * 0.001 + 20 * 0.0003
    database = (seen.rollouts_per_second * 0.0005 + 20 * 0.0001) / 4
    assert seen.server_busy == pytest.approx(server, rel=0.03)
    assert seen.database_busy == pytest.approx(database, rel=0.05)


def test_a_full_server_does_what_its_one_thread_can() -> None:
    seen = simulate(Plan(200, 0.01, COSTLY, warm_up_seconds=0.5, seconds=1, heartbeat_seconds=1e6))

    assert seen.rollouts_per_second == pytest.approx(1 / 0.001, rel=0.02)
    assert seen.first_to_break == "store server"


def test_two_servers_carry_twice_as_much_until_commits_that_notify_are_the_limit() -> None:
    plan = Plan(200, 0.01, COSTLY, servers=2, warm_up_seconds=0.5, seconds=0.7, heartbeat_seconds=1e6)
    slow_disk = dataclasses.replace(plan, costs=dataclasses.replace(COSTLY, commit_seconds=0.002))

    assert simulate(plan).rollouts_per_second == pytest.approx(2 / 0.001, rel=0.03)
    assert simulate(slow_disk).rollouts_per_second == pytest.approx(1 / 0.002, rel=0.03)


def test_commits_that_nobody_else_hears_of_share_a_sync() -> None:
    costs = dataclasses.replace(COSTLY, commit_seconds=0.004)
    seen = simulate(Plan(64, 0.0, costs, warm_up_seconds=0.5, seconds=1, heartbeat_seconds=1e6))

    assert seen.rollouts_per_second > 2 / 0.004


def test_every_item_is_somewhere_and_finishes_once() -> None:
    plan = Plan(10, 0.2, COSTLY, rate=30.0, burst=5, failure_rate=0.2, max_attempts=3, seconds=15)
    seen = simulate(plan)

    assert seen.enqueued == seen.finished + seen.failed + seen.queued + seen.in_hand
    assert seen.retries / seen.enqueued == pytest.approx(0.2 + 0.04, rel=0.3)
    assert seen.failed / seen.enqueued == pytest.approx(0.008, abs=0.01)


def test_an_item_wakes_one_runner_and_a_herd_wakes_many_in_vain() -> None:
    plan = Plan(40, 0.01, COSTLY, rate=20.0, poll_seconds=1e6, seconds=4)
    one, herd = simulate(plan), simulate(dataclasses.replace(plan, woken_per_item=30))

    # A few are in vain: whoever has just finished takes an item before the one that was woken for it.
    assert one.wake_ups == pytest.approx(one.enqueued, abs=2)
    assert one.empty_wake_ups < 0.1 * one.enqueued
    assert herd.empty_wake_ups > 20 * herd.enqueued


def test_the_same_seed_gives_the_same_prediction() -> None:
    plan = Plan(20, 0.1, COSTLY, rate=50.0, failure_rate=0.1, seconds=3)

    assert simulate(plan) == simulate(plan)
    assert simulate(plan) != simulate(dataclasses.replace(plan, seed=1))


@pytest.mark.parametrize(
    ("name", "value"),
    [("runners", 0), ("servers", 0), ("rate", 0.0), ("seconds", 0.0), ("agent_seconds", -1.0), ("failure_rate", 1.0),
     ("spans", -1), ("rate", float("nan"))],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    with raises(ValueError, name):
        dataclasses.replace(Plan(1, 1.0, FREE), **{name: value})


def test_costs_of_an_unknown_store_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"sqlite": {"turn": {"server": 0.001}, "bytes_of_turn": 3000}}')

    assert Costs.read("sqlite", path).turn.server == 0.001
    with raises(ValueError, "oracle"):
        Costs.read("oracle", path)
