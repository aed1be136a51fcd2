"""Runners as threads of one process."""

import asyncio
import logging
import os
import signal
import threading
import time

import pytest

from sharpen.errors import ConfigError, RunnersExhaustedError, RunnerStartError
from sharpen.execution import ClientServerExecutionStrategy, SharedMemoryExecutionStrategy
from sharpen.runner import Runner
from sharpen.store import InMemoryLightningStore
from sharpen.types import RolloutConfig
from tests.errors import raises

from .bundles import Enqueue, Work
from .processes import notes, wait_for_note


def execute(algorithm, runner, store, **settings) -> None:
    SharedMemoryExecutionStrategy(**settings).execute(algorithm, runner, store)


def statistics(store):
    return asyncio.run(store.statistics())


@pytest.fixture
def store():
    opened = InMemoryLightningStore()
    yield opened
    asyncio.run(opened.close())


# -- work --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("main_thread", [None, "algorithm", "runner"])
@pytest.mark.parametrize("n_runners", [1, 4])
def test_any_number_of_runners_works_with_either_on_the_main_thread(store, tmp_path, n_runners, main_thread):
    algorithm = Enqueue(*({"sleep": 0.01} for _ in range(20)))
    execute(algorithm, Work(folder=tmp_path), store, n_runners=n_runners, main_thread=main_thread)
    assert algorithm.statuses == ["succeeded"] * 20
    assert len(notes(tmp_path, "start")) == len(notes(tmp_path, "end")) == n_runners


@pytest.mark.parametrize(
    ("settings", "who"),
    [
        ({}, "agent"),
        ({"main_thread": "runner"}, "agent"),
        ({"main_thread": "runner", "n_runners": 2}, "agent"),
        ({"n_runners": 2}, "algorithm"),
        ({"main_thread": "algorithm"}, "algorithm"),
    ],
)
def test_the_calling_thread_runs_what_it_is_told_to(store, settings, who):
    seen = {}

    def agent(task) -> float:
        seen["agent"] = threading.current_thread()
        return 1.0

    async def runner(store, worker_id, event) -> None:
        own = Runner()
        with own.run_context(agent=agent, store=store, worker_id=worker_id):
            await own.iter(event=event)

    algorithm = Enqueue("a", "b")

    async def noting(store, event) -> None:
        seen["algorithm"] = threading.current_thread()
        await algorithm(store, event)

    execute(noting, runner, store, **settings)
    assert algorithm.statuses == ["succeeded"] * 2
    assert [name for name, thread in seen.items() if thread is threading.current_thread()] == [who]


def test_any_object_may_be_a_task(store):
    task = object()
    seen = []

    async def runner(store, worker_id, event) -> None:
        claimed = await store.dequeue_rollout(wait_seconds=10)
        seen.append(claimed.input)
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)

    execute(Enqueue(task), runner, store)
    assert seen == [task]


def test_a_store_that_is_not_thread_safe_is_wrapped_and_stays_open():
    store, algorithm = InMemoryLightningStore(thread_safe=False), Enqueue("a", "b", "c")
    execute(algorithm, Work(), store, n_runners=3)
    assert algorithm.statuses == ["succeeded"] * 3
    assert statistics(store)["total_rollouts"] == 3


def test_execute_works_inside_a_running_loop(store):
    algorithm = Enqueue("a", "b")

    async def cell() -> None:
        execute(algorithm, Work(), store)

    asyncio.run(cell())
    assert algorithm.statuses == ["succeeded"] * 2


# -- failures ----------------------------------------------------------------------------------------


def test_a_runner_that_raises_is_started_again(store, caplog):
    algorithm = Enqueue("first", {"raise once": "out of luck"}, "last")
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["succeeded"] * 3
    assert "ValueError: out of luck" in caplog.text


def test_a_saturated_runner_is_replaced_at_once(store, caplog):
    algorithm = Enqueue({"wear once": "eight threads hang"}, "after")
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["succeeded"] * 2
    assert "hung agent threads" in caplog.text


def test_a_runner_that_fails_at_its_work_again_and_again_is_no_failed_start(store):
    config = RolloutConfig(max_attempts=6, retry_condition=["unresponsive"], unresponsive_seconds=60)
    algorithm = Enqueue({"raise": "out of luck"}, config=config)
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["failed"]
    attempts = asyncio.run(store.query_attempts(algorithm.rollouts[0].rollout_id))
    assert attempts[-1].metadata["error"] == "its runner thread exited: ValueError: out of luck"


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
def test_a_fork_of_an_agent_dies_of_sigterm(store, tmp_path, main_thread):
    algorithm = Enqueue("fork", "after")
    execute(algorithm, Work(folder=tmp_path), store, main_thread=main_thread)
    assert algorithm.statuses == ["succeeded"] * 2
    assert notes(tmp_path, "fork") == ["-15"]


def answer_of_a_fork(ask) -> int:
    fork = os.fork()
    if fork == 0:
        os._exit(ask())
    return os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])


def test_a_fork_has_the_handlers_of_its_user_and_keeps_its_own(store):
    seen = []

    def mine(number, frame) -> None:
        """What the user does at SIGTERM."""

    def own(number, frame) -> None:
        """What the fork does."""

    def look() -> int:
        """1 where the user's handler is back, and 2 more where a fork of the fork has the fork's own."""
        is_back = signal.getsignal(signal.SIGTERM) is mine
        signal.signal(signal.SIGTERM, own)
        return is_back + answer_of_a_fork(lambda: 2 * (signal.getsignal(signal.SIGTERM) is own))

    async def algorithm(store, event) -> None:
        seen.append(answer_of_a_fork(look))
        seen.append(signal.getsignal(signal.SIGTERM) is mine)

    before = signal.signal(signal.SIGTERM, mine)
    try:
        execute(algorithm, Work(), store, main_thread="algorithm")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [3, False]


async def broken(store, worker_id, event) -> None:
    raise LookupError("no such model")


def test_a_runner_that_fails_at_its_start_five_times_ends_the_run(store):
    with raises(RunnerStartError, 5, "no such model"):
        execute(Enqueue("a"), broken, store)


def test_max_rollouts_counts_over_the_lives_of_a_runner(store):
    with raises(RunnersExhaustedError, 2):
        execute(Enqueue("a", "b", {"raise once": "x"}, "d", "e"), Work(max_rollouts=3), store)
    assert statistics(store)["rollouts_by_status"]["succeeded"] == 3


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
def test_the_error_of_the_algorithm_reaches_the_caller(store, main_thread):
    async def fail(store, event) -> None:
        await store.enqueue_rollout({"sleep": 600})
        raise ZeroDivisionError("in the algorithm")

    with raises(ZeroDivisionError, "in the algorithm") as caught:
        execute(fail, Work(), store, main_thread=main_thread, graceful_delay=0.05)
    assert "fail" in [entry.name for entry in caught.traceback]


# -- the end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
def test_a_runner_that_does_not_stop_is_cancelled_and_hands_its_rollout_back(store, tmp_path, main_thread):
    async def algorithm(store, event) -> None:
        await store.enqueue_rollout({"sleep": 600})
        await asyncio.to_thread(wait_for_note, tmp_path, "sleeping")

    execute(algorithm, Work(folder=tmp_path), store, main_thread=main_thread, graceful_delay=0.05)
    assert len(notes(tmp_path, "cancelled")) == 1
    assert statistics(store)["queue_length"] == 1


def test_a_stuck_thread_is_given_up_with_an_error_and_its_rollout_marked(store, tmp_path, caplog):
    async def algorithm(store, event) -> None:
        await store.enqueue_rollout({"block": 2}, config=RolloutConfig())
        await asyncio.to_thread(wait_for_note, tmp_path, "blocking")

    began = time.monotonic()
    settings = {"main_thread": "algorithm", "graceful_delay": 0.05, "join_timeout": 0.1}
    execute(algorithm, Work(folder=tmp_path), store, **settings)
    assert time.monotonic() - began < 2
    assert [record.levelno for record in caplog.records if "abandoning the thread" in record.message] == [logging.ERROR]
    assert statistics(store)["rollouts_by_status"]["failed"] == 1


def test_stop_ends_a_run_from_another_thread(store, tmp_path):
    strategy = SharedMemoryExecutionStrategy(graceful_delay=0.05)

    def stop() -> None:
        wait_for_note(tmp_path, "sleeping")
        strategy.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    strategy.execute(Enqueue({"sleep": 600}), Work(folder=tmp_path), store)
    stopping.join()
    assert statistics(store)["queue_length"] == 1


def stopped_run(strategy, algorithm, store) -> None:
    stopping = threading.Timer(0.1, strategy.stop)
    stopping.start()
    strategy.execute(algorithm, Work(), store)
    stopping.join()


@pytest.mark.parametrize("kind", [SharedMemoryExecutionStrategy, ClientServerExecutionStrategy])
def test_an_algorithm_sees_the_event_of_a_stop_and_ends_by_itself(store, kind):
    ends = []

    async def algorithm(store, event) -> None:
        try:
            await asyncio.to_thread(event.wait)
            await asyncio.sleep(0.3)  # a cancellation would arrive here
            ends.append((await store.statistics())["total_rollouts"])
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    stopped_run(kind(), algorithm, store)
    assert ends == [0]


def test_an_algorithm_that_does_not_heed_a_stop_is_cancelled_after_the_delay(store):
    times = []

    async def algorithm(store, event) -> None:
        await asyncio.to_thread(event.wait)
        times.append(time.monotonic())
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            times.append(time.monotonic())
            raise

    stopped_run(SharedMemoryExecutionStrategy(graceful_delay=0.5), algorithm, store)
    first, second = times
    assert second - first >= 0.4


@pytest.mark.parametrize(
    "settings",
    [{"n_runners": 0}, {"n_runners": True}, {"main_thread": "both"}, {"join_timeout": -1}, {"graceful_delay": "x"}],
)
def test_a_setting_that_cannot_work_is_refused_by_name(settings):
    with raises(ConfigError, next(iter(settings))):
        SharedMemoryExecutionStrategy(**settings)
