"""When things go wrong: nothing is lost, the error reaches the caller, and a run can be taken up again."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sharpen.algorithm import Algorithm, Baseline, algo
from sharpen.errors import ConfigError, RunnersExhaustedError
from sharpen.runs import RunFolder
from sharpen.store import InMemoryLightningStore, SQLiteStore
from sharpen.trainer import Trainer
from sharpen.types import PromptTemplate
from tests.errors import raises

from .scenes import double, small_trainer, until


def written_result(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "result.json").read_text("utf-8"))
    return found


class Stumbling(Algorithm[Any]):
    """Counts to four, with a checkpoint after each step; fails at its third step until it has been repaired."""

    def __init__(self, failures: int = 1, *, checkpoints: bool = True) -> None:
        self.failures, self.checkpoints = failures, checkpoints
        self.step = 0
        self.taken: list[int] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        while self.step < 4:
            if self.step == 2 and self.failures:
                self.failures -= 1
                self.step = 99  # what is in memory is not to be trusted any more
                raise ArithmeticError("the third step failed")
            self.taken.append(self.step)
            self.step += 1
            if self.checkpoints:
                self.checkpoint()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


# -- the algorithm -----------------------------------------------------------------------------------


def test_an_error_of_the_algorithm_reaches_the_caller_and_the_records(caplog: pytest.LogCaptureFixture) -> None:
    trainer = small_trainer(algorithm=Stumbling(checkpoints=False))
    with raises(ArithmeticError, "the third step failed"):
        trainer.fit(double)
    assert trainer.result is not None
    assert trainer.result.status == "failed"
    assert trainer.result.run_dir is not None
    written = written_result(trainer.result.run_dir)
    assert written["status"] == "failed"
    assert "ArithmeticError: the third step failed" in written["error"]
    assert "in run" in caplog.text  # the traceback
    assert "ArithmeticError: the third step failed" in (trainer.result.run_dir / "run.log").read_text("utf-8")


def test_an_algorithm_with_a_checkpoint_starts_again_from_there(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = Stumbling()
    small_trainer(algorithm=algorithm, algorithm_retries=1).fit(double)
    assert algorithm.taken == [0, 1, 2, 3]
    assert "the algorithm failed; restarting" in caplog.text
    assert "ArithmeticError: the third step failed" in caplog.text


def test_without_a_checkpoint_there_is_no_second_try() -> None:
    algorithm = Stumbling(checkpoints=False)
    with pytest.raises(ArithmeticError):
        small_trainer(algorithm=algorithm, algorithm_retries=5).fit(double)
    assert algorithm.taken == [0, 1]


def test_retries_of_a_function_are_refused_as_it_keeps_no_checkpoint() -> None:
    @algo
    async def fails_once() -> None:
        raise ArithmeticError

    for algorithm in (fails_once, [Stumbling(), fails_once]):
        with raises(ConfigError, "fails_once"):
            small_trainer(algorithm=algorithm, algorithm_retries=2).fit(double)


def test_there_are_as_many_tries_as_were_allowed() -> None:
    algorithm = Stumbling(failures=3)
    with pytest.raises(ArithmeticError):
        small_trainer(algorithm=algorithm, algorithm_retries=2).fit(double)
    assert algorithm.failures == 0


def test_by_default_there_is_one_try() -> None:
    algorithm = Stumbling(failures=3)
    with pytest.raises(ArithmeticError):
        small_trainer(algorithm=algorithm).fit(double)
    assert algorithm.failures == 2


def test_an_error_before_the_run_is_recorded_as_well(runs: Path) -> None:
    trainer = Trainer(
        strategy="cs", algorithm="Baseline", store={"type": "SQLiteStore", "database_url": "sqlite:////no/where.db"}
    )
    with raises(OSError, "/no"):
        trainer.fit(double, [1])
    (folder,) = runs.iterdir()
    assert written_result(folder)["status"] == "failed"


def test_a_failed_rollout_is_data_and_not_an_error() -> None:
    result = small_trainer(dev=True).fit(lambda task: 1 / task, [0, 1], [2])
    assert result.status == "succeeded"
    assert (result.metrics["failed"], result.metrics["reward_mean"]) == (1, 0.5)


def test_runners_that_have_done_their_share_while_work_waits_end_the_run() -> None:
    trainer = small_trainer(algorithm="Baseline", n_runners=2, max_rollouts=2)
    with raises(RunnersExhaustedError, 2, "max_rollouts"):
        trainer.fit(double, range(20))
    assert trainer.status().succeeded == 4
    assert trainer.result is not None
    assert trainer.result.status == "failed"


# -- taking a run up again ---------------------------------------------------------------------------


def test_a_failed_run_is_taken_up_where_it_stopped() -> None:
    first = Stumbling()
    trainer = small_trainer(algorithm=first)
    with pytest.raises(ArithmeticError):
        trainer.fit(double)
    assert trainer.result is not None
    again = Stumbling(failures=0)
    result = small_trainer(algorithm=again).fit(double, resume=trainer.result.run_dir)
    assert again.taken == [2, 3]
    assert result.run_dir == trainer.result.run_dir
    assert result.run_dir is not None
    assert written_result(result.run_dir)["status"] == "succeeded"
    assert len(RunFolder.open(result.run_dir).read_config()["resumed"]) == 1


def test_the_last_run_is_found_by_itself() -> None:
    small_trainer(algorithm=Stumbling(failures=0)).fit(double)
    failing = small_trainer(algorithm=Stumbling())
    with pytest.raises(ArithmeticError):
        failing.fit(double)
    assert failing.result is not None
    again = Stumbling(failures=0)
    assert small_trainer(algorithm=again).fit(double, resume="last").run_dir == failing.result.run_dir
    assert again.taken == [2, 3]


def test_one_trainer_may_take_up_its_own_run() -> None:
    trainer = small_trainer(algorithm=Stumbling())
    with pytest.raises(ArithmeticError):
        trainer.fit(double)
    trainer.fit(double, resume="last")
    assert isinstance(trainer.algorithm, Stumbling)
    assert trainer.algorithm.taken == [0, 1, 2, 3]


def test_a_new_run_does_not_see_the_checkpoint_of_another() -> None:
    small_trainer(algorithm=Stumbling(failures=0)).fit(double)
    again = Stumbling(failures=0)
    small_trainer(algorithm=again).fit(double)
    assert again.taken == [0, 1, 2, 3]


def test_nothing_to_take_up_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        small_trainer(dev=True).fit(double, [1], resume="last")
    with pytest.raises(ConfigError):
        small_trainer(dev=True).fit(double, [1], resume=tmp_path / "nowhere")


def test_a_run_in_use_cannot_be_taken_up() -> None:
    refused: list[str] = []

    @algo
    def mine() -> None:
        assert trainer._folder is not None
        try:
            small_trainer(dev=True).fit(double, [1], resume=trainer._folder.path)
        except ConfigError as error:
            refused.append(str(error))

    trainer = small_trainer(algorithm=mine)
    trainer.fit(double)
    assert "is in use" in refused[0]


RUN = """
import pathlib, sys, time
from sharpen.trainer import Trainer
from sharpen.types import PromptTemplate

def agent(task):
    with open(sys.argv[1], "a") as file:
        file.write(f"{task}\\n")
    time.sleep(0.01)
    return float(task)

if __name__ == "__main__":
    retried = {"unresponsive_seconds": 1, "max_attempts": 3, "retry_condition": ["unresponsive"]}
    algorithm = {"type": "Baseline", "train_split": 1}
    trainer = Trainer(strategy="shm", algorithm=algorithm, n_runners=2, rollout_config=retried)
    result = trainer.fit(agent, range(150), resume=sys.argv[2] if len(sys.argv) > 2 else None)
    print(result.metrics["rollouts"], result.metrics["reward_mean"])
"""


def test_a_killed_run_goes_on_and_runs_nothing_twice_that_was_finished(tmp_path: Path, runs: Path) -> None:
    script, record = tmp_path / "run.py", tmp_path / "calls.txt"
    script.write_text(RUN)
    record.touch()
    with subprocess.Popen([sys.executable, str(script), str(record)], stderr=subprocess.DEVNULL) as first:
        until(lambda: len(record.read_text().splitlines()) >= 40)
        os.kill(first.pid, signal.SIGKILL)
    (folder,) = runs.iterdir()
    store = SQLiteStore(folder / "store.db")
    finished = {each.input for each in asyncio.run(store.query_rollouts(status_in=["succeeded"]))}
    asyncio.run(store.close())
    done = subprocess.run(
        [sys.executable, str(script), str(record), "last"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["150", str(sum(range(150)) / 150)]
    calls = Counter(int(line) for line in record.read_text().splitlines())
    assert set(calls) == set(range(150))
    assert {task for task, count in calls.items() if count > 1}.isdisjoint(finished)
    assert [each.name for each in runs.iterdir()] == [folder.name]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_says_so_in_its_records(
    tmp_path: Path, runs: Path, number: signal.Signals, code: int
) -> None:
    script, record = tmp_path / "run.py", tmp_path / "calls.txt"
    script.write_text(RUN)
    record.touch()
    with subprocess.Popen([sys.executable, str(script), str(record)], stderr=subprocess.PIPE, text=True) as child:
        until(lambda: len(record.read_text().splitlines()) >= 5)
        child.send_signal(number)
        _, shown = child.communicate(timeout=60)
    assert child.returncode == code, shown
    (folder,) = runs.iterdir()
    assert written_result(folder)["status"] == "interrupted"
    assert written_result(folder)["metrics"]["rollouts"] >= 3
    store = SQLiteStore(folder / "store.db")
    assert not asyncio.run(store.query_rollouts(status_in=["preparing", "running"])).items
    asyncio.run(store.close())


def test_a_baseline_is_not_shared_between_runs_by_accident(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    algorithm = Baseline()
    means = [small_trainer(algorithm=algorithm).fit(double, [n]).metrics["reward_mean"] for n in (1, 2)]
    assert means == [2, 4]


def test_a_run_goes_on_only_with_the_algorithm_that_made_it() -> None:
    made = small_trainer(algorithm=Stumbling(failures=0)).fit(double)
    with raises(ConfigError, "Stumbling", "Baseline"):
        small_trainer(algorithm="Baseline").fit(double, [1], resume=made.run_dir)


def test_a_run_without_any_success_says_so_and_why(caplog: pytest.LogCaptureFixture) -> None:
    def broken(task: Any) -> float:
        raise ConnectionError("no tool answers")

    result = small_trainer().dev(broken, [1, 2])
    assert result.metrics["failed"] == 2
    (warning,) = result.warnings
    assert warning in caplog.text
    assert "2 rollouts failed" in warning
    assert "ConnectionError: no tool answers" in warning
    assert result.run_dir is not None
    assert written_result(result.run_dir)["warnings"] == [warning]


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_a_rollout_that_failed_is_logged_once(strategy: str) -> None:
    result = small_trainer(strategy=strategy).dev(fails_at_two, [1, 2, 3], [])
    assert result.run_dir is not None
    lines = (result.run_dir / "run.log").read_text("utf-8").splitlines()
    (line,) = [line for line in lines if "no tool answers" in line]
    assert "WARNING" in line
    assert "-train-1" in line


def fails_at_two(task: Any) -> float:
    if task == 2:
        raise ConnectionError("no tool answers")
    return 1.0


def test_a_finished_baseline_that_is_resumed_shows_no_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    result = small_trainer().dev(double, [1, 2])
    assert "mean reward" in capsys.readouterr().err
    again = small_trainer().dev(double, [1, 2], resume=result.run_dir)
    assert "mean reward" not in capsys.readouterr().err
    assert again.metrics["rollouts"] == 2


@pytest.mark.parametrize("reward", [None, 0.0])
def test_a_run_without_any_reward_says_so(reward: float | None, caplog: pytest.LogCaptureFixture) -> None:
    def silent(task: Any) -> float | None:
        return reward

    result = small_trainer().dev(silent, [1, 2])
    assert ["2 rollouts" in warning and "reward" in warning for warning in result.warnings] == [True] * (reward is None)
    assert all(warning in caplog.text for warning in result.warnings)


def test_work_that_others_left_in_the_store_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    store = InMemoryLightningStore()
    asyncio.run(store.enqueue_rollout(1.0))
    small_trainer(store=store).dev(double, [1.0])
    assert "1 queued rollouts from elsewhere" in caplog.text


def test_a_reader_of_the_output_that_goes_away_ends_no_run(tmp_path: Path) -> None:
    program = (
        "from sharpen import Trainer\n"
        "result = Trainer(strategy='shm', store='memory').dev(lambda task: 1.0, list(range(30)))\n"
        "open('status', 'w').write(result.status)\n"
    )
    command = f'{sys.executable} -c "$PROGRAM" 2>&1 | head -1'
    environment = {**os.environ, "PROGRAM": program}
    subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, check=True, timeout=60)
    assert (tmp_path / "status").read_text() == "succeeded"


def test_initial_resources_are_there_before_any_algorithm_runs() -> None:
    @algo
    async def asking(store: Any) -> None:
        queued = await store.enqueue_rollout("x")
        (done,) = await store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=30)
        assert done.status == "succeeded"

    def agent(task: Any, prompt_template: Any) -> float:
        return float(prompt_template.format(task=task) == "say x")

    trainer = small_trainer(algorithm=asking, initial_resources={"p": PromptTemplate("say {task}")})
    assert trainer.fit(agent).metrics["reward_mean"] == 1.0
