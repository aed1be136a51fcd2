"""Trainer: one call runs everything, tells how it went, and leaves its records behind."""

import asyncio
import dataclasses
import json
import logging
import os
import random
import sys
import threading
from collections import Counter
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pydantic
import pytest

from sharpen.adapter import TracerTraceToTriplet
from sharpen.algorithm import Algorithm, Baseline, algo
from sharpen.errors import ComponentError, ComponentTypeError, ConfigError, TaskError
from sharpen.execution import (
    ClientServerExecutionStrategy,
    ExecutionStrategy,
    SharedMemoryExecutionStrategy,
    ThreadingEvent,
)
from sharpen.litagent import LitAgent, prompt_rollout, rollout
from sharpen.runner import LitAgentRunner
from sharpen.store import InMemoryLightningStore, LightningStore, SQLiteStore
from sharpen.tracer import OtelTracer
from sharpen.trainer import RunResult, Trainer, TrainerLegacy
from sharpen.types import Hook, PromptTemplate, RolloutConfig
from tests.archive.internals import RunEntry
from tests.errors import raises

from .scenes import double, small_trainer, until


def inputs_of(trainer: Trainer) -> Counter[tuple[str | None, Any]]:
    rollouts = asyncio.run(trainer.store.query_rollouts())
    return Counter((each.mode, each.input) for each in rollouts if each.status == "succeeded")


# -- fit and dev -------------------------------------------------------------------------------------


def test_fit_runs_the_algorithm_and_gives_back_how_it_went(runs: Path) -> None:
    trainer = small_trainer(algorithm=Baseline())
    result = trainer.fit(double, [1, 2], [3])
    assert result.status == "succeeded"
    assert result.metrics["reward_mean"] == 4
    assert result.metrics["val/reward_mean"] == 6
    assert result.metrics["rollouts"] == 3
    assert result.run_dir is not None
    assert result.run_dir.parent == runs
    assert trainer.result is result
    assert inputs_of(trainer) == Counter([("train", 1), ("train", 2), ("val", 3)])


@pytest.mark.parametrize("reports", [True, False])
def test_names_of_the_whole_run_are_never_beside_those_of_an_iteration(reports: bool) -> None:
    class Validating(Algorithm[Any]):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            store = self.get_store()
            made = [await store.enqueue_rollout(1, mode=mode) for mode in ("train", "val", "val")]
            await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in made])
            if reports:
                self.report_validation({"reward_mean": 10.0, "rollouts": 1})

    metrics = small_trainer(algorithm=Validating()).fit(double).metrics
    own = {name: value for name, value in metrics.items() if name.startswith(("train/", "val/"))}
    of_the_run = {name.removeprefix("run/"): value for name, value in metrics.items() if name.startswith("run/")}
    del of_the_run["reward_mean"]
    assert (of_the_run["train/rollouts"], of_the_run["val/rollouts"]) == (1, 2)
    assert own == ({"val/reward_mean": 10.0, "val/rollouts": 1} if reports else of_the_run)


def test_every_metric_of_a_result_has_one_meaning() -> None:
    class OneFirst(Algorithm[Any]):
        """Has rollouts of 1, and reports iterations of its own, the last without a validation."""

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            store = self.get_store()
            for mode in ("train", "train", "val"):
                await store.enqueue_rollout(1, mode=mode)
            while (await store.statistics())["rollouts_by_status"].get("succeeded", 0) < 3:
                await asyncio.sleep(0.01)
            self.report_iteration({"reward_mean": 7.0, "loss": 1.0}, val_metrics={"reward_mean": 8.0})
            self.report_iteration({"reward_mean": 9.0})
            self.report_validation({"reward_mean": 10.0})

    result = small_trainer(algorithm=OneFirst()).fit(double)
    assert (result.metrics["train/reward_mean"], result.metrics["val/reward_mean"]) == (9.0, 10.0)
    assert "train/loss" not in result.metrics  # of an iteration before
    names = ("run/train/reward_mean", "run/val/reward_mean", "run/reward_mean", "reward_mean")
    assert [result.metrics[name] for name in names] == [2.0, 2.0, 2.0, 2.0]
    assert (result.metrics["run/train/rollouts"], result.metrics["run/val/rollouts"]) == (2, 1)
    assert result.run_dir is not None
    entry = RunEntry.of(result.run_dir)
    assert (entry.reward_name, entry.reward) == ("val/reward_mean", 10.0)


def search_of(*prompts: str) -> Any:
    """An algorithm that measures one prompt after another, and publishes the last."""

    @algo
    async def search(store: LightningStore, val_dataset: Any) -> None:
        for prompt in prompts:
            resources = await store.add_resources({"prompt": PromptTemplate(prompt)})
            asked = [await store.enqueue_rollout(task, "val", resources.resources_id) for task in val_dataset]
            await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in asked])

    return search


@prompt_rollout
def length_of_prompt(task: int, prompt_template: PromptTemplate) -> float:
    return len(prompt_template.template) + task % 3 / 10


@pytest.mark.parametrize(("prompts", "is_worse"), [(("long", "short prompt", "a"), True), (("a", "b", "long"), False)])
def test_a_run_that_ends_worse_than_it_began_says_so(prompts: tuple[str, ...], is_worse: bool) -> None:
    trainer = small_trainer(algorithm=search_of(*prompts))
    result = trainer.fit(length_of_prompt, [1], range(6))
    assert result.status == "succeeded"
    assert result.run_dir is not None
    told = (result.run_dir / "run.log").read_text("utf-8")
    assert len(result.warnings) == int(is_worse)
    assert json.loads((result.run_dir / "result.json").read_text("utf-8"))["warnings"] == result.warnings
    assert ("val/reward_mean ended worse" in told) is is_worse
    assert all("4.1 -> 1.1" in each and each in told for each in result.warnings)


def test_old_names_stay_where_no_iteration_is_reported() -> None:
    @algo
    async def once(*, store: Any) -> None:
        await store.enqueue_rollout(1, mode="val")
        while not (await store.statistics())["rollouts_by_status"].get("succeeded"):
            await asyncio.sleep(0.01)

    metrics = small_trainer(algorithm=once).fit(double).metrics
    assert metrics["val/reward_mean"] == metrics["run/val/reward_mean"] == 2.0


def test_dev_prints_no_line_for_a_rollout_that_did_not_fail(capfd: pytest.CaptureFixture[str]) -> None:
    result = small_trainer().dev(lambda task: 1 / task, [0, 1, 2, 3])
    assert result.metrics["failed"] == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if " ro-" in line]
    assert len(lines) == 1
    assert "ZeroDivisionError" in lines[0]


def test_dev_runs_a_baseline_where_no_algorithm_was_given() -> None:
    trainer = small_trainer()
    assert trainer.dev(double, [1], [2]).metrics["reward_mean"] == 3


def test_a_trainer_for_development_does_so_in_fit() -> None:
    assert small_trainer(dev=True).fit(double, [1], [2]).metrics["rollouts"] == 2


def test_dev_takes_only_algorithms_for_trying_things_out() -> None:
    @algo
    def mine() -> None:
        return

    with raises(TypeError, "FastAlgorithm", "Baseline"):
        small_trainer(algorithm=mine).dev(double, [1])
    with raises(TypeError, "FunctionalAlgorithm"):
        small_trainer(algorithm=mine, dev=True).fit(double, [1])


def test_data_sets_are_given_by_position_or_by_name() -> None:
    by_position, by_name = small_trainer(dev=True), small_trainer(dev=True)
    by_position.fit(double, [1], [2])
    by_name.fit(agent=double, val_dataset=[2], train_dataset=[1])
    assert inputs_of(by_position) == inputs_of(by_name)


class AClass(LitAgent[float]):
    def rollout(self, task: float, resources: Any, rollout: Any) -> float:
        return task * 2


class AnAsyncClass(LitAgent[float]):
    async def rollout_async(self, task: float, resources: Any, rollout: Any) -> float:
        return task * 2


async def an_async_function(task: float) -> float:
    return task * 2


@rollout
def decorated(task: float) -> float:
    return task * 2


@pytest.mark.parametrize(
    "agent",
    [double, an_async_function, decorated, AClass, AClass(), AnAsyncClass()],
    ids=["function", "async function", "decorated", "class", "instance", "async instance"],
)
def test_every_kind_of_agent_works(agent: Any) -> None:
    assert small_trainer().dev(agent, [1, 2]).metrics["reward_mean"] == 3


def test_what_is_no_agent_is_refused() -> None:
    with pytest.raises(TypeError):
        small_trainer().dev(3, [1])


@pytest.mark.parametrize(
    "tasks", [[1, 2], (1, 2), range(1, 3), iter([1, 2]), {1, 2}], ids=lambda tasks: type(tasks).__name__
)
def test_every_kind_of_data_set_works(tasks: Any) -> None:
    assert small_trainer().dev(double, tasks).metrics["reward_mean"] == 3


@pytest.mark.parametrize("tasks", [3, {"a": 1}, b"ab", object()])
def test_what_is_no_data_set_is_refused(tasks: Any) -> None:
    with raises(TypeError, "train_dataset", type(tasks).__name__):
        small_trainer().dev(double, tasks)


def test_the_old_protocol_is_refused_with_the_new_one() -> None:
    trainer = small_trainer()
    assert isinstance(trainer, TrainerLegacy)
    with raises(ConfigError, "http://localhost:9999", "fit(", "train_dataset="):
        trainer.fit(double, "http://localhost:9999")


def test_a_second_fit_is_a_run_of_its_own() -> None:
    trainer = Trainer(strategy="shm", algorithm="Baseline")
    first, second = trainer.fit(double, [1]), trainer.fit(double, [2])
    assert first.run_dir != second.run_dir
    assert inputs_of(trainer) == Counter([("val", 2)])
    assert first.run_dir is not None
    assert (first.run_dir / "store.db").exists()


def test_a_trainer_runs_once_at_a_time() -> None:
    go_on = threading.Event()
    refused: list[BaseException] = []

    @algo
    def waits() -> None:
        try:
            trainer.fit(double)
        except ConfigError as error:
            refused.append(error)

    trainer = small_trainer(algorithm=waits)
    trainer.fit(double)
    go_on.set()
    assert len(refused) == 1


def test_tasks_without_an_algorithm_are_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    trainer = small_trainer()
    thread = threading.Thread(target=lambda: trainer.fit(double, [1]))
    thread.start()
    until(lambda: trainer.status().state == "running")
    trainer.stop()
    thread.join()
    assert "Trainer(algorithm=...)" in caplog.text


def test_without_an_algorithm_runners_are_served_until_somebody_stops_them() -> None:
    trainer = small_trainer(initial_resources={"prompt": PromptTemplate("hi")})
    results: list[RunResult] = []
    thread = threading.Thread(target=lambda: results.append(trainer.fit(double)))
    thread.start()
    until(lambda: trainer.status().state == "running" and asyncio.run(trainer.store.get_latest_resources()) is not None)
    asyncio.run(trainer.store.enqueue_rollout(4))
    until(lambda: trainer.status().succeeded == 1)
    trainer.stop()
    thread.join()
    assert results[0].status == "succeeded"
    assert results[0].best_resources == {"prompt": PromptTemplate("hi")}


# -- where it may be called --------------------------------------------------------------------------


async def test_fit_works_inside_a_running_loop() -> None:
    assert small_trainer().dev(double, [1, 2]).metrics["reward_mean"] == 3


async def test_fit_can_be_awaited() -> None:
    result = await small_trainer(dev=True).fit_async(double, [1, 2])
    assert result.metrics["reward_mean"] == 3


async def test_an_error_reaches_whoever_awaits() -> None:
    @algo
    def fails() -> None:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        await small_trainer(algorithm=fails).fit_async(double)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_cancelling_the_wait_ends_the_run_in_order(kind: str) -> None:
    ended: list[str] = []

    @algo
    async def waits(store: Any) -> None:
        try:
            await store.wait_for_rollouts(
                rollout_ids=[(await store.enqueue_rollout("x", rollout_id="never")).rollout_id]
            )
        finally:
            ended.append("async")

    @algo
    def waits_sync(store: Any) -> None:
        async def wait() -> None:
            await store.enqueue_rollout("x", rollout_id="never")
            await store.wait_for_rollouts(rollout_ids=["never"])

        try:
            asyncio.run(wait())
        finally:
            ended.append("sync")

    async def slow(task: Any) -> None:
        await asyncio.sleep(600)

    strategy = SharedMemoryExecutionStrategy(n_runners=2, graceful_delay=0.1)
    trainer = small_trainer(algorithm=waits if kind == "async" else waits_sync, strategy=strategy)
    running = asyncio.create_task(trainer.fit_async(slow))
    while not trainer.status().running:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == [kind]
    assert trainer.result is not None
    assert trainer.result.status == "interrupted"
    assert not [thread for thread in threading.enumerate() if thread.name == "sharpen-algorithm"]


async def test_a_run_that_is_cancelled_before_it_began_ends_all_the_same() -> None:
    @algo
    async def endless() -> None:
        await asyncio.sleep(600)

    trainer = small_trainer(algorithm=endless)
    running = asyncio.create_task(trainer.fit_async(double))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert trainer.result is None or trainer.result.status == "interrupted"


def test_a_sync_algorithm_may_start_loops_of_its_own() -> None:
    @algo
    def mine(store: Any, train_dataset: Any) -> None:
        ids = [asyncio.run(store.enqueue_rollout(task, mode="train")).rollout_id for task in train_dataset]
        finished = asyncio.run(store.wait_for_rollouts(rollout_ids=ids))
        asyncio.run(store.add_resources({"mean": PromptTemplate(str(sum(each.reward for each in finished) / 2))}))

    result = small_trainer(algorithm=mine).fit(double, [1, 2])
    assert result.best_resources == {"mean": PromptTemplate("3.0")}
    assert result.resources_version == 1


# -- what the algorithm is given ---------------------------------------------------------------------


def test_the_algorithm_is_given_everything_before_it_runs() -> None:
    seen: dict[str, Any] = {}

    class Mine(Algorithm[Any]):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            for part in ("trainer", "store", "adapter", "llm_proxy", "initial_resources"):
                seen[part] = getattr(self, f"get_{part}")()
            seen["datasets"] = (train_dataset, val_dataset)

    resources = {"prompt": PromptTemplate("hi")}
    trainer = small_trainer(algorithm=Mine, initial_resources=resources)
    trainer.fit(double, [1], [2])
    assert seen["trainer"] is trainer
    assert seen["store"].store is trainer.store
    assert isinstance(seen["adapter"], TracerTraceToTriplet)
    assert seen["llm_proxy"] is None
    assert seen["initial_resources"] == resources
    assert seen["datasets"] == ([1], [2])


def test_an_algorithm_gets_of_its_siblings_what_its_constructor_takes() -> None:
    class Mine(Algorithm[Any]):
        def __init__(
            self, store: Any, tracer: Any, adapter: Any, llm_proxy: Any, initial_resources: Any, rounds: int = 3
        ):
            self.got = (store, tracer, adapter, llm_proxy, initial_resources, rounds)

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            return

    trainer = small_trainer(algorithm=Mine)
    assert isinstance(trainer.algorithm, Mine)
    assert trainer.algorithm.got == (trainer.store, trainer.tracer, trainer.adapter, None, None, 3)
    trainer.fit(double)


def test_rollouts_without_a_configuration_get_the_trainers() -> None:
    given = RolloutConfig(timeout_seconds=5)

    @algo
    async def mine(store: Any) -> None:
        from sharpen import EnqueueRolloutRequest

        await store.enqueue_rollout("one")
        await store.enqueue_many_rollouts([EnqueueRolloutRequest("two"), EnqueueRolloutRequest("three", config=given)])
        await store.start_rollout("four")

    trainer = small_trainer(algorithm=mine)
    trainer.fit(lambda task: None)
    configs = {each.input: each.config for each in asyncio.run(trainer.store.query_rollouts())}
    default = RolloutConfig(unresponsive_seconds=60, max_attempts=3, retry_condition=["unresponsive"])
    assert configs == {"one": default, "two": default, "three": given, "four": default}


@pytest.mark.parametrize("config", [RolloutConfig(max_attempts=7), {"max_attempts": 7}])
def test_the_configuration_of_rollouts_can_be_given(config: Any) -> None:
    trainer = small_trainer(rollout_config=config, dev=True)
    trainer.fit(double, [1])
    assert asyncio.run(trainer.store.query_rollouts())[0].config == RolloutConfig(max_attempts=7)


@pytest.mark.parametrize("config", [{"max_attempts": 0}, {"tries": 3}, {"max_attempts": "many"}])
def test_a_configuration_that_cannot_work_is_refused(config: Any) -> None:
    with raises(ConfigError, "rollout_config"):
        small_trainer(rollout_config=config)


# -- specs -------------------------------------------------------------------------------------------


def test_the_defaults_are_the_documented_ones() -> None:
    trainer = Trainer()
    assert isinstance(trainer.strategy, ClientServerExecutionStrategy)
    assert isinstance(trainer.tracer, OtelTracer)
    assert isinstance(trainer.adapter, TracerTraceToTriplet)
    assert isinstance(trainer.runner, LitAgentRunner)
    assert trainer.runner.tracer is trainer.tracer
    assert trainer.algorithm is None
    assert trainer.llm_proxy is None
    assert trainer.hooks == []


def test_building_a_trainer_leaves_nothing_on_disk(runs: Path) -> None:
    Trainer(algorithm="Baseline", n_runners=2)
    assert not runs.exists()


@pytest.mark.parametrize(
    "spec",
    [
        SharedMemoryExecutionStrategy,
        SharedMemoryExecutionStrategy(n_runners=2),
        lambda: SharedMemoryExecutionStrategy(n_runners=2),
        "shm",
        "SharedMemoryExecutionStrategy",
        "sharpen.execution.shared_memory.SharedMemoryExecutionStrategy",
        {"type": "shm", "join_timeout": 3.0},
    ],
    ids=["class", "instance", "factory", "alias", "name", "path", "dict"],
)
def test_a_strategy_comes_in_every_form(spec: Any) -> None:
    strategy = small_trainer(strategy=spec, n_runners=2).strategy
    assert isinstance(strategy, SharedMemoryExecutionStrategy)
    assert strategy.n_runners == 2


@pytest.mark.parametrize(
    "spec", ["SQLiteStore", "sqlite", SQLiteStore, {"type": "SQLiteStore", "synchronous": "full"}, None]
)
def test_a_durable_store_without_a_place_lies_in_the_folder_of_the_run(spec: Any) -> None:
    trainer = Trainer(strategy="shm", store=spec, dev=True)
    result = trainer.fit(double, [1])
    assert isinstance(trainer.store, SQLiteStore)
    assert result.run_dir is not None
    assert trainer.store.path == result.run_dir / "store.db"


def test_a_durable_store_may_lie_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'training.db'}"
    trainer = Trainer(strategy="shm", store={"type": "SQLiteStore", "database_url": url}, dev=True)
    result = trainer.fit(double, [1])
    assert (tmp_path / "training.db").exists()
    assert result.run_dir is not None
    assert not (result.run_dir / "store.db").exists()


def test_the_store_can_be_asked_for_before_the_run() -> None:
    trainer = Trainer(strategy="shm", dev=True)
    store = trainer.store
    result = trainer.fit(double, [1])
    assert trainer.store is store
    assert result.run_dir is not None
    assert (result.run_dir / "store.db").exists()


def test_a_runner_gets_what_its_constructor_takes() -> None:
    trainer = small_trainer(runner={"type": "LitAgentRunner", "concurrency": 3}, max_rollouts=5)
    assert (trainer.runner.concurrency, trainer.runner.max_rollouts) == (3, 5)
    assert trainer.runner.tracer is trainer.tracer


def test_a_runner_without_a_tracer_gets_the_trainers() -> None:
    trainer = small_trainer(runner=LitAgentRunner(tracer=None))
    assert trainer.runner.tracer is trainer.tracer


class Greeting(Hook):
    pass


@pytest.mark.parametrize("hooks", [Greeting(), [Greeting()], Greeting, [Greeting], (Greeting(),)])
def test_hooks_are_one_or_several(hooks: Any) -> None:
    assert [type(hook) for hook in small_trainer(hooks=hooks).hooks] == [Greeting]


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"hooks": [3]}, ComponentError, ("hooks=3", "Hook")),
        ({"algorithm": "Basline"}, ComponentError, ("baseline",)),
        ({"strategy": InMemoryLightningStore}, ComponentTypeError, ("ExecutionStrategy",)),
        ({"store": 3}, ComponentError, ("store=3",)),
        ({"runner": {"type": "LitAgentRunner", "slots": 2}}, ComponentError, ("slots",)),
        ({"n_runners": -1}, ConfigError, ("n_runners", -1, 1)),
        ({"n_runners": True}, ConfigError, ("n_runners", True)),
        ({"max_rollouts": 0}, ConfigError, ("max_rollouts", 0, 1)),
        ({"seed": "abc"}, ConfigError, ("seed", "abc")),
        ({"stall_seconds": "long"}, ConfigError, ("stall_seconds", "long")),
        ({"stall_seconds": 0}, ConfigError, ("stall_seconds", 0)),
        ({"dev": "maybe"}, ConfigError, ("dev", "maybe")),
        ({"dashboard": "maybe"}, ConfigError, ("dashboard", "maybe")),
        ({"algorithm_retries": 1.5}, ConfigError, ("algorithm_retries", 1.5)),
    ],
)
def test_a_wrong_part_is_named_at_once(
    options: dict[str, Any], error: type[Exception], named: tuple[object, ...]
) -> None:
    with raises(error, *named):
        _ = Trainer(**{"strategy": "shm", **options}).store


def test_the_port_goes_to_the_server() -> None:
    strategy = Trainer(port=5123).strategy
    assert isinstance(strategy, ClientServerExecutionStrategy)
    assert strategy.server_port == 5123


def test_a_port_that_contradicts_the_strategy_is_refused() -> None:
    with raises(ConfigError, "port", 5123, "ClientServerExecutionStrategy", "server_port=1234"):
        Trainer(port=5123, strategy=ClientServerExecutionStrategy(server_port=1234))
    with raises(ConfigError, "port", 5123, "SharedMemoryExecutionStrategy"):
        Trainer(port=5123, strategy="shm")


def test_a_number_of_runners_that_contradicts_the_strategy_is_refused() -> None:
    with raises(ConfigError, 4, "SharedMemoryExecutionStrategy", "n_runners=2"):
        Trainer(n_runners=4, strategy=SharedMemoryExecutionStrategy(n_runners=2))


def test_a_bound_on_rollouts_that_contradicts_the_runner_is_refused() -> None:
    with raises(ConfigError, 4, "LitAgentRunner", "max_rollouts=2"):
        Trainer(max_rollouts=4, runner=LitAgentRunner(max_rollouts=2))


# -- the records -------------------------------------------------------------------------------------


def test_every_run_has_a_folder_with_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_TOKEN", "s3cret")
    monkeypatch.setenv("SHARPEN_LOG", "debug")
    algorithm = {"type": "Baseline", "max_queue_length": 2}
    result = Trainer(strategy="shm", algorithm=algorithm, seed=3, name="first").fit(double, [1, 2], iter([]))
    assert result.run_dir is not None
    assert result.run_dir.name.endswith("-first")
    names = {each.name for each in result.run_dir.iterdir()}
    assert names >= {"store.db", "config.json", "run.log", "metrics.jsonl", "checkpoints", "result.json"}
    config = json.loads((result.run_dir / "config.json").read_text("utf-8"))
    assert config["components"]["algorithm"]["class"] == "sharpen.algorithm.fast.Baseline"
    assert config["components"]["algorithm"]["spec"] == repr(algorithm)
    assert config["components"]["store"]["class"] == "sharpen.store.sqlite.SQLiteStore"
    assert config["settings"]["seed"] == 3
    assert config["rollout_config"]["max_attempts"] == 3
    assert config["datasets"] == {
        "train": {"class": "builtins.list", "size": 2},
        "val": {"class": "builtins.list_iterator", "size": None},
    }
    assert config["environment"]["SHARPEN_LOG"] == "debug"
    assert "s3cret" not in (result.run_dir / "config.json").read_text("utf-8")
    written = json.loads((result.run_dir / "result.json").read_text("utf-8"))
    assert (written["status"], written["metrics"]["rollouts"], written["error"]) == ("succeeded", 2, None)
    assert "succeeded, reward 2.0" in (result.run_dir / "run.log").read_text("utf-8")


def test_a_secret_in_a_spec_is_not_written_down() -> None:
    class Mine(Algorithm[Any]):
        def __init__(self, api_key: str) -> None:
            self.api_key = api_key

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            return

    result = small_trainer(algorithm={"type": Mine, "api_key": "sk-12345"}).fit(double)
    assert result.run_dir is not None
    assert "sk-12345" not in "".join(path.read_text("utf-8") for path in result.run_dir.glob("*.json"))


def test_the_folder_can_be_chosen(tmp_path: Path) -> None:
    result = small_trainer(dev=True, run_dir=tmp_path / "here").fit(double, [1])
    assert result.run_dir == tmp_path / "here"


WHOLE = {"pair": (1, ("a", [2])), "on": date(2026, 1, 31), "at": [datetime(2026, 1, 31, 12, tzinfo=UTC), time(9, 30)]}


class Ticket(pydantic.BaseModel):
    text: str


@dataclasses.dataclass
class Question:
    text: str


def is_whole(task: Any) -> float:
    """An agent: whether the task arrived as it was given, types included."""
    return float(repr(task) == repr(WHOLE))


def test_an_agent_in_another_process_gets_tuples_dates_and_times_as_they_were_given() -> None:
    trainer = Trainer(algorithm=Baseline())
    result = trainer.fit(is_whole, [WHOLE], [WHOLE])
    assert (result.metrics["rollouts"], result.metrics["reward_mean"]) == (2, 1)
    assert [each.input for each in asyncio.run(trainer.store.query_rollouts())] == [WHOLE, WHOLE]


@pytest.mark.parametrize("strategy", ["cs", "shm"])
@pytest.mark.parametrize(
    ("task", "place", "way_out"),
    [
        ({"a": ({"when": object()},)}, "['a'][0]['when']", "memory"),
        ({"tags": {"x"}}, "['tags']", "set"),
        (Ticket(text="help"), "", "model_dump"),
        ({"ticket": Ticket(text="help")}, "['ticket']", "Ticket.model_validate"),
        ([Question("why")], "[0]", "asdict"),
    ],
    ids=["object", "set", "pydantic", "field", "dataclass"],
)
def test_a_task_that_the_store_cannot_keep_is_named_before_anything_is_written(
    runs: Path, strategy: str, task: Any, place: str, way_out: str
) -> None:
    for train, val, where in (([1, 2, task], None, "train_dataset[2]"), ([1], (2, task), "val_dataset[1]")):
        with pytest.raises(TaskError) as caught:
            Trainer(algorithm=Baseline(), strategy=strategy).fit(double, train, val)
        assert str(caught.value).startswith(f"{where}{place} ")
        assert way_out in str(caught.value)
    assert not runs.exists()


def test_of_a_data_set_that_is_read_by_index_the_first_task_is_tried(runs: Path) -> None:
    class Tickets:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            assert index == 0
            return Ticket(text="help")

    with raises(TaskError, "train_dataset[0]"):
        Trainer(algorithm=Baseline()).fit(double, Tickets())
    assert not runs.exists()


def test_an_algorithm_may_enqueue_something_else_than_the_tasks_of_its_data_set() -> None:
    @algo
    async def dumping(*, store: LightningStore, train_dataset: Any) -> None:
        rollouts = [await store.enqueue_rollout(ticket.model_dump()) for ticket in train_dataset]
        await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts])

    trainer = Trainer(algorithm=dumping, strategy="shm")
    trainer.fit(lambda task: float(task == {"text": "help"}), [Ticket(text="help")])
    assert [each.reward for each in asyncio.run(trainer.store.query_rollouts())] == [1]


def test_any_object_may_be_a_task_in_memory() -> None:
    assert small_trainer(dev=True).fit(lambda task: 1.0, [object()]).metrics["reward_mean"] == 1


def test_the_seed_makes_runs_alike() -> None:
    drawn: list[float] = []

    @algo
    def mine() -> None:
        drawn.append(random.random())

    class OnlyTheAlgorithm(ExecutionStrategy):
        async def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
            await algorithm(store, ThreadingEvent())

    for _ in range(2):
        small_trainer(algorithm=mine, seed=11, strategy=OnlyTheAlgorithm).fit(double)
    assert drawn == [random.Random(11).random()] * 2


def test_the_log_of_a_user_who_set_it_up_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from sharpen.logging import current_settings, setup_logging

    setup_logging("error")
    before = current_settings()
    small_trainer(dev=True).fit(double, [1])
    assert current_settings() == before
    assert "succeeded, reward" not in capsys.readouterr().err


def test_what_a_run_prints_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    result = small_trainer(dev=True).fit(double, [1, 2])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "mean reward" in shown.err
    assert "queued 0  running 0  done 2  failed 0  train reward 2.000  val reward 4.000" in shown.err
    assert shown.err.splitlines()[-1] == f"records: {result.run_dir}"


def test_the_adapter_and_the_environment_are_no_business_of_a_run() -> None:
    before = dict(os.environ)
    small_trainer(dev=True).fit(double, [1])
    assert dict(os.environ) == before
    assert sys.breakpointhook is sys.__breakpointhook__
    assert logging.getLogger().level == logging.WARNING


def test_the_adapter_keeps_the_calls_of_the_agents_that_are_trained() -> None:
    class Team(LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
            return 1.0

    trainer = small_trainer()
    trainer.dev(Team(trained_agents="writer"), [1])
    assert trainer.adapter.agent_match == "writer"  # type: ignore[attr-defined]
    given = small_trainer(adapter={"agent_match": "critic"})
    given.dev(Team(trained_agents="writer"), [1])
    assert given.adapter.agent_match == "critic"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("resources", "named"),
    [
        ({"prompt": "Say {it}"}, ("initial_resources['prompt']", "PromptTemplate(", "{it}")),
        ({"model": 3}, ("initial_resources['model']", "PromptTemplate")),
        ([PromptTemplate("a")], ("initial_resources",)),
    ],
)
def test_resources_of_a_wrong_kind_are_refused_before_anything_starts(
    resources: Any, named: tuple[object, ...]
) -> None:
    with raises(ConfigError, *named):
        Trainer(initial_resources=resources)
