"""Runners as processes: they work, die, are replaced, and end in order."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from sharpen.errors import PortTakenError, RunError, RunnersExhaustedError, RunnerStartError, StoreFileError, TaskError
from sharpen.execution import ClientServerExecutionStrategy
from sharpen.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer, SQLiteStore
from sharpen.types import RolloutConfig
from tests.errors import raises
from tests.execution.internals import pool
from tests.web.internals import listen

from .bundles import SIGKILL, Enqueue, Work
from .processes import child_pids, eventually, is_running, notes, wait_for_note

pytestmark = pytest.mark.usefixtures("no_spares")


def execute(algorithm, runner, store, **settings) -> ClientServerExecutionStrategy:
    strategy = ClientServerExecutionStrategy(**settings)
    strategy.execute(algorithm, runner, store)
    return strategy


@pytest.fixture
def store(store_path):
    opened = SQLiteStore(store_path)
    yield opened
    asyncio.run(opened.close())


def statistics(store):
    return asyncio.run(store.statistics())


# -- work --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_runners", [1, 3])
def test_rollouts_are_run_in_processes_of_their_own(store, tmp_path, n_runners):
    algorithm = Enqueue(*({"sleep": 0.05} for _ in range(12)))
    execute(algorithm, Work(folder=tmp_path), store, n_runners=n_runners)
    assert algorithm.statuses == ["succeeded"] * 12
    assert len(notes(tmp_path, "start")) == n_runners
    assert len(notes(tmp_path, "end")) == n_runners
    assert statistics(store)["rollouts_by_status"]["succeeded"] == 12


def test_a_memory_store_is_served_from_this_process():
    store, algorithm = InMemoryLightningStore(), Enqueue("a", "b")
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["succeeded"] * 2
    assert statistics(store)["total_rollouts"] == 2


def test_a_store_that_is_not_thread_safe_is_served_all_the_same():
    store, algorithm = InMemoryLightningStore(thread_safe=False), Enqueue("a", "b")
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["succeeded"] * 2


def test_a_store_of_ones_own_is_served_with_its_own_methods(store_path):
    class Counting(SQLiteStore):
        claims = 0

        async def dequeue_many_rollouts(self, **arguments):
            Counting.claims += 1
            return await super().dequeue_many_rollouts(**arguments)

    store, algorithm = Counting(store_path), Enqueue("a")
    execute(algorithm, Work(), store)
    asyncio.run(store.close())
    assert algorithm.statuses == ["succeeded"]
    assert Counting.claims > 0


async def test_a_client_brings_its_own_server():
    server = LightningStoreServer(InMemoryLightningStore(), token="t")
    await server.start()
    client, algorithm = LightningStoreClient(server.endpoint, "t"), Enqueue("a")
    await asyncio.to_thread(execute, algorithm, Work(), client)
    assert algorithm.statuses == ["succeeded"]
    assert (await server.statistics())["total_rollouts"] == 1
    await client.close()
    await server.stop()


async def test_runners_obey_the_options_of_a_client_of_the_users_own(tmp_path):
    store, spool = InMemoryLightningStore(), tmp_path / "spool"
    server = LightningStoreServer(store, token="t")
    await server.start()
    client = LightningStoreClient(server.endpoint, "t", retry_seconds=30, spool_after_seconds=0.1, spool_folder=spool)
    algorithm = Enqueue({"sleep": 1})
    running = asyncio.create_task(asyncio.to_thread(execute, algorithm, Work(folder=tmp_path), client))
    await asyncio.to_thread(wait_for_note, tmp_path, "sleeping")
    await server.stop()
    await asyncio.to_thread(eventually, lambda: list(spool.glob("*.spool")), "the outcome is spooled")
    again = LightningStoreServer(store, port=server.port, token="t")
    await again.start()
    await running
    assert algorithm.statuses == ["succeeded"]
    await client.close()
    await again.stop()


async def test_a_server_that_runs_already_is_used_as_it_is():
    server = LightningStoreServer(InMemoryLightningStore(), token="t")
    await server.start()
    algorithm = Enqueue("a")
    await asyncio.to_thread(execute, algorithm, Work(), server, managed_store=False)
    assert algorithm.statuses == ["succeeded"]
    await server.stop()


def test_a_store_that_nobody_serves_is_refused_when_the_strategy_must_not():
    with raises(ValueError, "managed_store", False, "InMemoryLightningStore"):
        execute(Enqueue("a"), Work(), InMemoryLightningStore(), managed_store=False)


def test_a_task_that_would_arrive_as_something_else_is_refused_at_once():
    store = InMemoryLightningStore()
    with pytest.raises(TaskError):
        execute(Enqueue({1, 2}), Work(), store)
    assert statistics(store)["total_rollouts"] == 0


def test_execute_works_inside_a_running_loop(store):
    algorithm = Enqueue("a", "b")

    async def cell() -> None:
        execute(algorithm, Work(), store)

    asyncio.run(cell())
    assert algorithm.statuses == ["succeeded"] * 2


def test_output_of_an_agent_reaches_the_output_of_the_run(store, capfd):
    execute(Enqueue({"print": "from the agent"}), Work(), store)
    assert "from the agent\n" in capfd.readouterr().out


def test_two_runs_at_once_never_meet(tmp_path):
    ends = {}

    def run(name: str) -> None:
        store, algorithm = SQLiteStore(tmp_path / f"{name}.db"), Enqueue(*({"sleep": 0.01} for _ in range(10)))
        execute(algorithm, Work(), store)
        ends[name] = algorithm.statuses, statistics(store)["total_rollouts"]
        asyncio.run(store.close())

    together = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    assert ends == {name: (["succeeded"] * 10, 10) for name in ("one", "two")}


def test_a_taken_port_is_a_clear_error_before_anything_starts(store, tmp_path):
    with listen("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with raises(PortTakenError, port):
            execute(Enqueue("a"), Work(folder=tmp_path), store, server_port=port)
    assert not notes(tmp_path, "start")
    assert statistics(store)["total_rollouts"] == 0


def test_the_store_is_served_on_the_port_that_was_asked_for(store):
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    seen = []

    async def algorithm(store, event) -> None:
        seen.append(store.url)

    execute(algorithm, Work(), store, server_port=port)
    assert seen == [f"http://127.0.0.1:{port}"]


def test_the_token_is_on_no_command_line_and_in_no_log(store, tmp_path, caplog):
    caplog.set_level("DEBUG")
    seen = []

    async def algorithm(store, event) -> None:
        seen.append(store.address().token)
        for pid in await asyncio.to_thread(wait_for_note, tmp_path, "start"):
            number = pid.rpartition("-")[2]
            seen.append(Path(f"/proc/{number}/cmdline").read_text() + Path(f"/proc/{number}/environ").read_text())

    execute(algorithm, Work(folder=tmp_path), store)
    token, *elsewhere = seen
    assert len(token) > 30
    assert elsewhere
    assert not [text for text in [*elsewhere, caplog.text] if token in text]


# -- deaths ------------------------------------------------------------------------------------------


def test_a_runner_killed_in_the_middle_of_a_rollout_is_replaced_and_the_rollout_retried(store, tmp_path, caplog):
    algorithm = Enqueue({"kill once": SIGKILL}, "after")
    execute(algorithm, Work(folder=tmp_path), store)
    assert algorithm.statuses == ["succeeded"] * 2
    attempts = asyncio.run(store.query_attempts(algorithm.rollouts[0].rollout_id))
    assert [attempt.status for attempt in attempts] == ["unresponsive", "succeeded"]
    assert len(notes(tmp_path, "start")) == 2
    assert "SIGKILL" in caplog.text


def test_the_rollout_of_a_killed_runner_fails_where_its_rule_allows_no_retry(store):
    algorithm = Enqueue({"kill": SIGKILL}, "after", config=RolloutConfig())
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["failed", "succeeded"]


def test_a_rollout_whose_last_attempt_was_lost_fails_at_once_with_the_reason(store):
    config = RolloutConfig(max_attempts=2, retry_condition=["unresponsive"], unresponsive_seconds=60)
    algorithm = Enqueue({"kill": SIGKILL}, config=config)
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["failed"]
    assert algorithm.seconds[0] < 30
    attempts = asyncio.run(store.query_attempts(algorithm.rollouts[0].rollout_id))
    assert [attempt.status for attempt in attempts] == ["unresponsive"] * 2
    reason = {"error_type": "RunnerDied", "error": "its runner process exited: killed by SIGKILL"}
    assert [attempt.metadata for attempt in attempts] == [reason] * 2


def test_a_fork_of_an_agent_dies_of_sigterm_and_its_runner_goes_on(store, tmp_path):
    algorithm = Enqueue("fork", "fork", "after")
    execute(algorithm, Work(folder=tmp_path), store)
    assert algorithm.statuses == ["succeeded"] * 3
    assert notes(tmp_path, "fork") == ["-15"]
    assert len(notes(tmp_path, "start")) == 1
    assert not notes(tmp_path, "cancelled")
    assert statistics(store)["total_attempts"] == 3


def test_what_an_agent_started_ends_with_its_runner(store, tmp_path):
    execute(Enqueue("start", {"kill once": SIGKILL}), Work(folder=tmp_path), store)
    (pid,) = notes(tmp_path, "started")
    assert not is_running(int(pid))


@pytest.mark.parametrize("code", [0, 3])
def test_a_runner_that_exits_is_replaced(store, caplog, code):
    algorithm = Enqueue({"exit once": code})
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["succeeded"]
    assert f"exit code {code}" in caplog.text


def test_a_runner_whose_code_raises_is_replaced_and_its_traceback_is_logged(store, caplog):
    algorithm = Enqueue("first", {"raise once": "out of luck"})
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["succeeded"] * 2
    assert "ValueError: out of luck" in caplog.text
    assert "Traceback" in caplog.text


def test_a_saturated_runner_is_replaced_at_once(store, caplog):
    algorithm = Enqueue({"wear once": "eight threads hang"}, "after")
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["succeeded"] * 2
    assert "hung agent threads" in caplog.text


async def broken(store, worker_id, event) -> None:
    raise LookupError("no such model")


def test_a_runner_that_fails_at_its_start_five_times_ends_the_run(store, caplog):
    with raises(RunnerStartError, 5, "no such model"):
        execute(Enqueue("a"), broken, store)
    assert caplog.text.count("no such model\n") >= 4


class FailsToArrive:
    def __reduce__(self):
        return (int, ("not a number",))


def test_a_bundle_that_cannot_be_read_over_there_is_a_failed_start(store):
    work = Work()
    work.agent = FailsToArrive()
    with raises(RunnerStartError, "not a number"):
        execute(Enqueue("a"), work, store)


async def die(store, worker_id, event) -> None:
    await store.dequeue_rollout(worker_id="somebody", wait_seconds=0.01)
    os._exit(9)


@pytest.mark.slow
def test_a_runner_that_only_dies_ends_the_run(store):
    with raises(RunError, 9):
        execute(Enqueue("a"), die, store)


def test_max_rollouts_counts_over_the_lives_of_a_runner(store, tmp_path):
    with raises(RunnersExhaustedError, 1):
        execute(Enqueue("a", "b", {"exit once": 1}, "c", "d"), Work(max_rollouts=4, folder=tmp_path), store)
    assert len(notes(tmp_path, "start")) == 2
    assert statistics(store)["rollouts_by_status"]["succeeded"] == 4


def test_runners_that_have_done_their_share_end_the_run_only_while_rollouts_wait(store):
    algorithm = Enqueue("a", "b")
    execute(algorithm, Work(max_rollouts=1), store, n_runners=2)
    assert algorithm.statuses == ["succeeded"] * 2


def test_a_store_server_killed_in_the_middle_is_replaced_and_nothing_is_lost(store, tmp_path, caplog):
    algorithm = Enqueue(*({"sleep": 0.02} for _ in range(60)))

    def kill_the_server() -> None:
        eventually(lambda: statistics(store)["rollouts_by_status"].get("succeeded", 0) > 5)
        (pid,) = children_running("store")
        os.kill(pid, signal.SIGKILL)

    killing = threading.Thread(target=kill_the_server)
    killing.start()
    execute(algorithm, Work(folder=tmp_path), store, n_runners=2)
    killing.join()
    assert algorithm.statuses == ["succeeded"] * 60
    assert len(notes(tmp_path, "start")) == 2
    numbers = statistics(store)
    assert (numbers["total_attempts"], numbers["open_attempts"]) == (60, 0)
    assert "(killed by SIGKILL)" in caplog.text


def test_a_parent_expires_no_lease_while_its_store_server_stands_still(store, tmp_path):
    lease = RolloutConfig(unresponsive_seconds=1.5, max_attempts=3, retry_condition=["unresponsive"])
    algorithm, seen = Enqueue({"sleep": 0.5}, config=lease), []

    def pause_the_server() -> None:
        wait_for_note(tmp_path, "sleeping")
        (pid,) = children_running("store")
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(3)  # what is tested is a pause of this length
            seen.append(statistics(store)["rollouts_by_status"])
        finally:
            os.kill(pid, signal.SIGCONT)

    pausing = threading.Thread(target=pause_the_server)
    pausing.start()
    execute(algorithm, Work(folder=tmp_path), store, n_runners=1)
    pausing.join()
    assert [{status: count for status, count in each.items() if count} for each in seen] == [{"preparing": 1}]
    assert algorithm.statuses == ["succeeded"]
    assert statistics(store)["total_attempts"] == 1


def children_running(role: str) -> list[int]:
    """The children of this process that were started for a role."""
    return [pid for pid in child_pids() if role_of(pid) == role]


def role_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").rpartition("\0")[2]


@pytest.mark.slow
def test_a_store_server_that_cannot_start_ends_the_run_with_its_reason(store_path):
    store = SQLiteStore(store_path)
    store_path.rename(store_path.with_name("elsewhere.db"))
    store_path.mkdir()
    with raises(RunError, 5, "store.db"):
        execute(Enqueue("a"), Work(), store)
    with pytest.raises(StoreFileError):
        asyncio.run(store.close())


# -- the end -----------------------------------------------------------------------------------------


async def fail(store, event) -> None:
    await store.enqueue_rollout({"sleep": 600})
    raise ZeroDivisionError("in the algorithm")


def test_the_error_of_the_algorithm_reaches_the_caller_with_its_traceback(store):
    with raises(ZeroDivisionError, "in the algorithm") as caught:
        execute(fail, Work(), store, graceful_timeout=0.2)
    assert "fail" in [entry.name for entry in caught.traceback]


def test_a_runner_that_does_not_stop_is_cancelled_and_hands_its_rollout_back(store, tmp_path):
    async def algorithm(store, event) -> None:
        await store.enqueue_rollout({"sleep": 600})
        await asyncio.to_thread(wait_for_note, tmp_path, "sleeping")

    execute(algorithm, Work(folder=tmp_path), store, graceful_timeout=0.1, terminate_timeout=20)
    assert len(notes(tmp_path, "cancelled")) == 1
    assert statistics(store)["queue_length"] == 1


def test_a_runner_that_hears_nothing_is_killed_and_its_rollout_marked(store, tmp_path, caplog):
    async def algorithm(store, event) -> None:
        await store.enqueue_rollout({"block": 600})
        await asyncio.to_thread(wait_for_note, tmp_path, "blocking")

    began = time.monotonic()
    execute(algorithm, Work(folder=tmp_path), store, graceful_timeout=0.1, terminate_timeout=0.2)
    assert time.monotonic() - began < 30
    (pid,) = notes(tmp_path, "blocking")
    assert not is_running(int(pid))
    assert [name for name in ("SIGINT", "SIGTERM", "SIGKILL") if name in caplog.text] == [
        "SIGINT",
        "SIGTERM",
        "SIGKILL",
    ]
    assert statistics(store)["open_attempts"] == 0


def test_stop_ends_a_run_from_another_thread(store, tmp_path):
    strategy = ClientServerExecutionStrategy(graceful_timeout=0.1)

    def stop() -> None:
        wait_for_note(tmp_path, "sleeping")
        strategy.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    strategy.execute(Enqueue({"sleep": 600}), Work(folder=tmp_path), store)
    stopping.join()
    assert statistics(store)["queue_length"] == 1


def test_an_algorithm_that_never_ends_is_given_up_inside_a_running_loop(store, caplog):
    strategy, release = ClientServerExecutionStrategy(graceful_timeout=0.1, terminate_timeout=5), threading.Event()

    async def deaf(store, event) -> None:
        strategy.stop()
        release.wait(30)

    async def cell() -> None:
        strategy.execute(deaf, Work(), store)

    began = time.monotonic()
    asyncio.run(cell())
    assert time.monotonic() - began < 20
    release.set()
    assert "abandoning the algorithm's thread" in caplog.text


def test_an_event_tells_the_algorithm_that_the_run_ends(store):
    strategy = ClientServerExecutionStrategy()
    seen = []

    async def algorithm(store, event) -> None:
        strategy.stop()
        try:
            await asyncio.sleep(600)
        finally:
            seen.append(event.is_set())

    strategy.execute(algorithm, Work(), store)
    assert seen == [True]


# -- agents on the main thread -----------------------------------------------------------------------


def test_with_the_runner_in_the_main_process_nothing_has_to_travel(store):
    lock, seen = threading.Lock(), []

    async def runner(store, worker_id, event) -> None:
        with lock:
            seen.append(threading.current_thread().name)
        await Work(max_rollouts=1)(store, worker_id, event)

    algorithm = Enqueue("a")
    execute(algorithm, runner, store, main_process="runner")
    assert algorithm.statuses == ["succeeded"]
    assert len(seen) == 1


def test_a_large_agent_travels_and_may_be_stopped_on_its_way(store):
    work = Work()
    work.weights = os.urandom(30_000_000)
    algorithm = Enqueue("a")
    execute(algorithm, work, store)
    assert algorithm.statuses == ["succeeded"]

    async def nothing(store, event) -> None:
        return

    execute(nothing, work, store)


# -- spares ------------------------------------------------------------------------------------------


def test_a_second_run_finds_its_processes_started(store, tmp_path, monkeypatch):
    monkeypatch.delenv("SHARPEN_WARM")
    execute(Enqueue("a"), Work(), store)
    spares = pool.pids
    assert len(spares) == 2
    execute(Enqueue("a"), Work(folder=tmp_path), store)
    (started,) = notes(tmp_path, "start")
    assert int(started.rpartition("-")[2]) in spares


def test_no_process_is_started_ahead_where_that_is_switched_off(store):
    execute(Enqueue("a"), Work(), store)
    assert pool.pids == set()


def test_a_fork_of_this_process_has_no_spares(store, monkeypatch):
    monkeypatch.delenv("SHARPEN_WARM")
    execute(Enqueue("a"), Work(), store)
    spares = pool.pids
    fork = os.fork()
    if fork == 0:
        os._exit(len(pool.pids))
    assert os.waitpid(fork, 0)[1] == 0
    assert pool.pids == spares


def test_a_spare_that_died_is_replaced(store, monkeypatch):
    monkeypatch.delenv("SHARPEN_WARM")
    execute(Enqueue("a"), Work(), store)
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: not is_running(pid))
    algorithm = Enqueue("a")
    execute(algorithm, Work(), store)
    assert algorithm.statuses == ["succeeded"]


def test_a_spare_takes_over_folder_environment_and_path(store, tmp_path, monkeypatch):
    monkeypatch.delenv("SHARPEN_WARM")
    execute(Enqueue("a"), Work(), store)
    (tmp_path / "late.py").write_text("VALUE = 41\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LATE", "1")
    monkeypatch.syspath_prepend(tmp_path)

    async def runner(store, worker_id, event) -> None:
        import late

        while not event.is_set():
            claimed = await store.dequeue_rollout(wait_seconds=0.1)
            if claimed is not None:
                value = late.VALUE + int(os.environ["LATE"]) + (os.getcwd() == claimed.input)
                await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=value)

    algorithm = Enqueue(str(tmp_path))
    execute(algorithm, runner, store)
    assert [rollout.reward for rollout in algorithm.rollouts] == [43]
