"""`Trainer(algorithm=[...])`: one algorithm after another in one run."""

import asyncio
import json
import logging
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sharpen import LLM, AlgorithmSequence, PromptTemplate, ProxyLLM, prompt_rollout
from sharpen.algorithm import Algorithm, Baseline, algo
from sharpen.callbacks import Callback
from sharpen.errors import ComponentError, ComponentTypeError, ConfigError
from sharpen.llm_proxy import LLMProxy
from sharpen.store import LightningStore
from sharpen.trainer import Trainer
from tests.errors import raises

from .scenes import double, small_trainer, until
from .test_callbacks import Counting, Listening, steps_in

PROGRAM = Path(__file__).parent / "programs" / "sequence.py"
SEED = {"prompt": PromptTemplate(">")}


class Growing(Algorithm[Any]):
    """Adds a letter to the prompt, and has the agent try it."""

    def __init__(self, letter: str) -> None:
        self.letter, self.rewards = letter, list[float | None]()

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        text = prompt_in(self.get_initial_resources()) + self.letter
        store = self.get_store()
        await store.add_resources({"prompt": PromptTemplate(text)})
        rollouts = [await store.enqueue_rollout(task) for task in train_dataset]
        ended = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts])
        self.rewards += [each.reward for each in ended]
        self.report_iteration({"length": float(len(text))})


class GrowingInThread(Growing):
    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:  # type: ignore[override]
        asyncio.run(super().run(train_dataset, val_dataset))


@prompt_rollout
def measure(task: int, prompt_template: PromptTemplate) -> float:
    """An agent that tells how long its prompt is."""
    return float(len(prompt_template.template))


def prompt_in(resources: Any) -> str:
    found = (resources or {})["prompt"]
    assert isinstance(found, PromptTemplate)
    return found.template


@pytest.mark.parametrize("layout", [{"strategy": "shm", "store": "memory"}, {"strategy": "cs"}], ids=["shm", "cs"])
def test_every_stage_goes_on_from_what_the_last_one_published(layout: dict[str, Any]) -> None:
    listening, stages = Listening(), [Growing("a"), GrowingInThread("bc"), Growing("d")]
    trainer = Trainer(algorithm=stages, initial_resources=SEED, loggers=[listening], **layout)
    result = trainer.fit(measure, [1, 2])
    assert [stage.rewards for stage in stages] == [[2, 2], [4, 4], [5, 5]]
    assert prompt_in(result.best_resources) == ">abcd"
    assert listening.metrics == [(1, {"train/length": 2}), (2, {"train/length": 4}), (3, {"train/length": 5})]
    assert (trainer.current_iter, listening.ends) == (3, ["succeeded"])


def test_the_trainer_has_the_sequence_and_its_records_name_the_stages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sharpen")

    @algo
    def last() -> None:
        """Nothing to do."""

    trainer = small_trainer(algorithm=["Baseline", Counting(1), last])
    assert isinstance(trainer.algorithm, AlgorithmSequence)
    first, second, _ = trainer.algorithm.stages
    folder = trainer.fit(double, [1], [2]).run_dir
    assert folder is not None
    assert folder.name.endswith("-baseline-counting-last")
    assert (first.run_dir, second.run_dir) == (folder / "1-baseline", folder / "2-counting")
    assert (folder / "3-last").is_dir()
    assert isinstance(first, Baseline)
    assert first.rewards.all.count == 2
    described = json.loads((folder / "config.json").read_text())["components"]["algorithm"]
    assert described["class"] == "sharpen.algorithm.sequence.AlgorithmSequence"
    assert [{name: stage[name] for name in stage if name != "options"} for stage in described["stages"]] == [
        {"class": "sharpen.algorithm.fast.Baseline", "spec": "'Baseline'"},
        {"class": "tests.trainer.test_callbacks.Counting"},
        {"class": f"{__name__}.{last.__qualname__}"},
    ]
    for line in ("Baseline, then Counting, then last", "stage 1 of 3 (Baseline) ", "stage 3 of 3 (last) "):
        assert line in caplog.text


def test_one_stage_and_a_sequence_of_ones_own_work_too() -> None:
    for algorithm in ([Growing("a")], (Growing("a"),), AlgorithmSequence([Growing("a")])):
        trainer = small_trainer(algorithm=algorithm, initial_resources=SEED)
        assert prompt_in(trainer.fit(measure, [1]).best_resources) == ">a"


def test_what_is_no_list_of_algorithms_is_refused_at_once(runs: Path) -> None:
    with raises(ConfigError, "algorithm"):
        small_trainer(algorithm=[])
    with raises(ConfigError, "algorithm[1]"):
        small_trainer(algorithm=["Baseline", ["Baseline"]])
    with raises(ComponentError, "algorithm[0]", None):
        small_trainer(algorithm=[None])
    assert not runs.exists()


def test_stages_get_of_their_siblings_what_their_constructors_take() -> None:
    class Taking(Algorithm[Any]):
        def __init__(self, store: LightningStore) -> None:
            self.taken = store

    trainer = small_trainer(algorithm=["Baseline", Taking])
    assert isinstance(trainer.algorithm, AlgorithmSequence)
    (_, taking) = trainer.algorithm.stages
    assert isinstance(taking, Taking)
    assert taking.taken is trainer.store


def test_dev_takes_sequences_of_algorithms_for_trying_things_out() -> None:
    assert small_trainer(algorithm=["Baseline", "Baseline"]).dev(double, [1, 2]).metrics["rollouts"] == 4
    with raises(ComponentTypeError, "FastAlgorithm", "Baseline", "Growing"):
        small_trainer(algorithm=["Baseline", Growing("a")]).dev(double, [1])


# -- ends --------------------------------------------------------------------------------------------


class StopAt(Callback):
    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        loop.should_stop = loop.current_iter >= self.iteration


def test_a_callback_that_asks_for_the_end_ends_the_whole() -> None:
    def fit(**more: Any) -> tuple[list[int], Any]:
        stages = [Counting(5), Counting(5)]
        result = small_trainer(algorithm=stages, callbacks=[StopAt(2)]).fit(double, **more)
        return [stage.done for stage in stages], result

    done, result = fit()
    assert (done, result.status) == ([2, 0], "succeeded")
    assert fit(resume=result.run_dir)[0] == [0, 0]


def test_a_stage_that_fails_is_tried_again_from_its_last_checkpoint() -> None:
    class FailingOnce(Counting):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            self.fails_at = None

    first, second, listening = Counting(2), FailingOnce(4, fails_at=3), Listening()
    trainer = small_trainer(algorithm=[first, second], algorithm_retries=1, loggers=[listening])
    folder = trainer.fit(double).run_dir
    assert folder is not None
    assert (first.done, second.done) == (2, 4)
    assert [step for step, _ in listening.metrics] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in steps_in(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_a_run_goes_on_with_the_stages_that_it_began_with() -> None:
    with pytest.raises(RuntimeError):
        (failing := Trainer(algorithm=[Counting(1), Counting(3, fails_at=1)], strategy="shm")).fit(double)
    assert failing.result is not None
    folder = failing.result.run_dir
    assert folder is not None
    config = (folder / "config.json").read_text()
    others: list[Any] = [Counting(1), [Counting(1)], [Counting(1), Baseline()], [Baseline(), Counting(3)]]
    for other in others:
        with raises(ConfigError, "Counting, then", "Counting"):
            small_trainer(algorithm=other).fit(double, [1], resume=folder)
    assert (folder / "config.json").read_text() == config
    stages = [Counting(1), Counting(3)]
    trainer = Trainer(algorithm=stages, strategy="shm")
    trainer.fit(double, resume=folder)
    assert ([stage.done for stage in stages], trainer.current_iter) == ([0, 3], 4)


def test_a_run_killed_in_its_second_stage_goes_on_there(tmp_path: Path, runs: Path) -> None:
    record = tmp_path / "record.txt"
    record.touch()
    command = [sys.executable, str(PROGRAM), str(record)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        until(lambda: "waiting" in record.read_text())
        os.kill(first.pid, signal.SIGKILL)
    (folder,) = runs.iterdir()
    record.write_text(record.read_text() + "go\n")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["succeeded", ">aaaabbbb", "8"]
    assert record.read_text().splitlines() == [
        "begin a at 0 with >",
        "end a",
        "begin b at 0 with >aaaa",
        "waiting",
        "go",
        "begin b at 2 with >aaaa",
        "end b",
    ]
    lengths = [line["train/length"] for line in steps_in(folder / "metrics.jsonl")]
    assert lengths == [2, 3, 4, 5, 6, 7, 8, 9]
    assert "stage 2 of 2 (Second) resumed" in (folder / "run.log").read_text()


@pytest.mark.slow
def test_a_run_killed_at_random_ends_as_if_nothing_had_happened(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUT_SECONDS", "0.1")  # all of them take longer than any two lives
    chance, record, lives = random.Random(7), tmp_path / "record.txt", 0
    record.write_text("go\n")
    folders: list[str] = []
    while not (runs.exists() and (folders := [str(each) for each in runs.glob("*/config.json")])):
        _live(record, None, chance.uniform(0, 0.4))
    folder = Path(folders[0]).parent
    while "end b" not in record.read_text():
        lives += 1
        _live(record, folder, chance.uniform(0, 0.6))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(record), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["succeeded", ">aaaabbbb", "8"], done.stderr
    begun = [line for line in record.read_text().splitlines() if line.startswith("begin")]
    first, second = ([line for line in begun if line.startswith(f"begin {letter}")] for letter in "ab")
    assert begun == first + second
    assert {line.rpartition(" ")[2] for line in first} == {">"}
    assert {line.rpartition(" ")[2] for line in second} == {">aaaa"}
    assert lives >= 2
    assert [line["train/length"] for line in steps_in(folder / "metrics.jsonl")] == [2, 3, 4, 5, 6, 7, 8, 9]


def _live(record: Path, folder: Path | None, seconds: float) -> None:
    """Run the program, and kill it so long after a stage has begun."""
    command = [sys.executable, str(PROGRAM), str(record), *([] if folder is None else [str(folder)])]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:
        before = record.read_text()
        until(lambda: child.poll() is not None or record.read_text() != before)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()


# -- gateways, agents and runners --------------------------------------------------------------------


class Looking(Algorithm[Any]):
    """Keeps what it was given."""

    runs_side_by_side = True

    def __init__(self, *, needs_gateway: bool = False) -> None:
        self.needs_gateway = needs_gateway

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        self.resources, self.gateway = self.get_initial_resources() or {}, self.get_llm_proxy()
        self.is_ours = self.own_gateway_address is not None


def test_the_first_stage_gets_the_model_of_the_gateway_unless_it_publishes_its_own() -> None:
    models = [{"name": "main", "model": "any", "base_url": "http://127.0.0.1:9", "api_key": "none"}]
    for needs, names in (((False, True), ["main_llm"]), ((True, False), [])):
        stages = [Looking(needs_gateway=each) for each in needs]
        trainer = small_trainer(algorithm=stages, llm_proxy={"model_list": models})
        trainer.fit(double)
        assert [list(stage.resources) for stage in stages] == [names, names]
        assert all(isinstance(stage.gateway, LLMProxy) and stage.is_ours for stage in stages)


def test_a_gateway_is_made_where_any_stage_needs_one() -> None:
    assert small_trainer(algorithm=[Looking(), Looking()]).spec_of("llm_proxy") is None
    assert small_trainer(algorithm=[Looking(), Looking(needs_gateway=True)]).spec_of("llm_proxy") == "LLMProxy"


def test_an_algorithm_knows_the_prompt_that_the_agent_has_by_itself() -> None:
    @prompt_rollout
    def agent(task: int, prompt_template: PromptTemplate = PromptTemplate("own")) -> float:  # noqa: B008
        return 0.0

    stages = [Looking(), Looking()]
    small_trainer(algorithm=stages).fit(agent)
    assert [stage.agent_prompt for stage in stages] == [PromptTemplate("own")] * 2
    single = Looking()
    small_trainer(algorithm=single).fit(double)
    assert single.agent_prompt is None


def test_async_agents_run_side_by_side_where_the_algorithm_asks_for_many_rollouts() -> None:
    async def waiting(task: float) -> float:
        return task

    for algorithm, agent, concurrency in (
        (Looking(), waiting, 32),
        (["Baseline", Looking()], waiting, 32),
        (Looking(), double, 1),
        ("Baseline", waiting, 1),
    ):
        trainer = small_trainer(algorithm=algorithm)
        trainer.fit(agent, [1.0])
        assert trainer.runner.concurrency == concurrency
    given = small_trainer(algorithm=Looking(), runner={"type": "Runner", "concurrency": 3})
    given.fit(waiting, [1.0])
    assert given.runner.concurrency == 3


def test_resources_that_hold_a_model_of_the_users_are_handed_on() -> None:
    own = {"llm": LLM("http://127.0.0.1:9/v1", "mine"), "proxied": ProxyLLM("http://127.0.0.1:8/v1", "theirs")}
    stages = [Looking(), Looking()]
    small_trainer(algorithm=stages, initial_resources=own).fit(double)
    assert [stage.resources for stage in stages] == [own, own]
