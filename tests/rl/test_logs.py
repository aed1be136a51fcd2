"""What steps log, and what becomes of it."""

import csv
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sharpen.rl import (
    Collector,
    ConsoleWriter,
    CsvWriter,
    LogBuffer,
    LogCollector,
    LogLevel,
    LogWriter,
    MlflowWriter,
    PickleWriter,
    TensorboardWriter,
    vectorize_env,
)
from tests.errors import raises
from tests.rl.internals import EnvParts
from tests.rl.toys import Countdown, InitialAsReward, Left, Two, VectorCartPole, Zeros

PARTS = EnvParts(Countdown, Left(), Two(), InitialAsReward())


def play(writer: Any, states: Any = (1, 2, 3), collections: int = 1) -> None:
    with vectorize_env(PARTS, "dummy", 2, writer) as venv:
        for _ in range(collections):
            venv.bind(states)
            Collector(Zeros(), venv).play()


def test_a_collector_keeps_each_kind_and_refuses_others() -> None:
    logs = LogCollector(LogLevel.DEBUG)
    logs.add_string("s", "text")
    logs.add_scalar("i", 3)
    logs.add_scalar("f", np.float32(0.5))
    logs.add_scalar("a", np.array([2.0]))
    logs.add_array("x", np.zeros(3), LogLevel.DEBUG)
    logs.add_any("o", object)
    values = logs.logs()
    assert values["s"] == (LogLevel.PERIODIC, "text")
    assert values["f"] == (LogLevel.PERIODIC, 0.5)
    assert type(values["i"][1]) is float  # a whole number is averaged over an episode like any other
    assert values["a"][1] == 2.0
    assert values["x"][0] == LogLevel.DEBUG
    for add, value in [
        (logs.add_string, 1),
        (logs.add_scalar, "1"),
        (logs.add_scalar, np.zeros(2)),
        (logs.add_array, [1]),
    ]:
        with raises(TypeError, "new"):
            add("new", value)  # type: ignore[operator]
    with raises(ValueError, "s"):
        logs.add_any("s", 1)
    logs.reset()
    assert logs.logs() == {}


@pytest.mark.parametrize("value", [1, True, np.bool_(1), np.float32(1), np.array(1), torch.tensor(1.0)])
def test_what_holds_one_number_is_logged_as_a_number(value: Any) -> None:
    logs = LogCollector()
    logs.add("one", value)
    assert logs.logs() == {"one": (LogLevel.PERIODIC, 1.0)}


def test_a_collector_drops_what_nobody_wants() -> None:
    logs = LogCollector(LogLevel.INFO)
    logs.add_scalar("quiet", 1.0, LogLevel.PERIODIC)
    logs.add_scalar("loud", 1.0, LogLevel.CRITICAL)
    assert set(logs.logs()) == {"loud"}


def test_values_of_an_episode_become_one() -> None:
    assert LogWriter.aggregation([1.0, 2.0], "reward") == 3.0
    assert LogWriter.aggregation([1.0, 2.0], "other") == 1.5
    assert LogWriter.aggregation(["a", "b"]) == "a"
    with pytest.raises(ValueError):
        LogWriter.aggregation([])


def test_a_writer_counts_collections_apart_and_all_together() -> None:
    writer = LogWriter()
    play(writer, collections=2)
    assert (writer.episode_count, writer.step_count) == (3, 6)
    assert (writer.global_episode, writer.global_step) == (6, 12)
    other = LogWriter()
    other.load_state_dict(writer.state_dict())
    assert other.state_dict() == writer.state_dict()


def test_a_writer_may_be_driven_by_hand() -> None:
    seen: list[Any] = []

    class Mine(LogWriter):
        def log_step(self, reward: float, contents: dict[str, Any]) -> None:
            seen.append((reward, contents))

        def log_episode(self, length: int, rewards: list[float], contents: list[dict[str, Any]]) -> None:
            seen.append((length, rewards, contents))

    writer = Mine(LogLevel.INFO)
    writer.on_env_all_ready()
    writer.on_env_reset(0, None)
    writer.on_env_step(0, None, 1.0, False, {"log": {"a": (LogLevel.INFO, 5), "b": (LogLevel.DEBUG, 6)}})
    assert writer.active_env_ids == {0}
    writer.on_env_step(0, None, 2.0, True, {"log": {}})
    writer.on_env_all_done()
    assert seen == [(1.0, {"a": 5}), (2.0, {}), (2, [1.0, 2.0], [{"a": 5}, {}])]


def test_a_buffer_tells_of_each_episode_and_each_collection() -> None:
    calls: list[tuple[bool, bool, dict[str, float]]] = []

    def callback(on_episode: bool, on_collect: bool, buffer: LogBuffer) -> None:
        calls.append((on_episode, on_collect, buffer.episode_metrics() if on_episode else buffer.collect_metrics()))

    buffer = LogBuffer(callback)
    with pytest.raises(ValueError):
        buffer.episode_metrics()
    play(buffer, (2, 4))
    assert calls == [
        (True, False, {"reward": 2.0, "steps_per_episode": 2.0, "initial": 2.0}),
        (True, False, {"reward": 4.0, "steps_per_episode": 4.0, "initial": 4.0}),
        (False, True, {"reward": 3.0, "steps_per_episode": 3.0, "initial": 3.0}),
    ]


def test_a_vector_simulator_is_logged_episode_by_episode(tmp_path: Path) -> None:
    buffer, table = LogBuffer(lambda *_: None), CsvWriter(tmp_path)
    with vectorize_env(VectorCartPole, "dummy", 8, [buffer, table]) as venv:  # type: ignore[arg-type]
        venv.bind(range(20))
        batch = Collector(Zeros(), venv).collect()
    assert buffer.collect_metrics()["reward"] == pytest.approx(batch.returns_E.mean())
    assert buffer.global_step == len(batch)
    with open(tmp_path / "result.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sorted(float(row["reward"]) for row in rows) == sorted(batch.returns_E.tolist())


def test_the_console_shows_every_nth_episode_and_the_end() -> None:
    stream = io.StringIO()
    play(ConsoleWriter(2, total_episodes=5, stream=stream), (1, 1, 1, 1, 1))
    lines = stream.getvalue().splitlines()
    assert [line.split("]")[0] for line in lines] == ["[   2/5", "[   4/5", "[   5/5", "[   5/5"]
    assert "reward 1.0000 (1.0000)" in lines[0]


def test_the_table_has_a_row_per_episode_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    writer = CsvWriter(tmp_path)
    play(writer, (1, 2))
    state = writer.state_dict()
    play(writer, (3,))  # after the checkpoint: lost
    resumed = CsvWriter(tmp_path)
    resumed.load_state_dict(state)
    play(resumed, (4,))
    with open(tmp_path / "result.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["episode"], row["reward"]) for row in rows] == [("1", "1.0"), ("2", "2.0"), ("3", "4.0")]


def test_the_table_holds_texts_too_and_whole_numbers_are_averaged(tmp_path: Path) -> None:
    class Talks(InitialAsReward):
        def reward(self, simulator_state: float) -> float:
            self.log("left", int(simulator_state))
            self.log("day", "monday")
            self.log("shape", np.zeros(2))
            return 1.0

    with vectorize_env(EnvParts(Countdown, Left(), Two(), Talks()), "dummy", 2, CsvWriter(tmp_path)) as venv:
        venv.bind([4])
        Collector(Zeros(), venv).play()
    with open(tmp_path / "result.csv", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    expected = {"episode": "1", "left": "1.5", "day": "monday", "reward": "4.0", "steps_per_episode": "4"}
    assert row == expected


def test_pickles_hold_everything_that_was_logged(tmp_path: Path) -> None:
    play(PickleWriter(tmp_path), (2,))
    with open(tmp_path / "result.pkl", "rb") as file:
        record = pickle.load(file)
    assert record["rewards"] == [1.0, 1.0]
    assert record["contents"][0]["obs"].shape == (2,)
    assert record["contents"][1]["initial"] == 2.0


def test_tensorboard_gets_a_point_per_episode(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorboardWriter(tmp_path)
    play(writer, (1, 2, 3))
    writer.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(event.value for event in found.Scalars("reward")) == [1.0, 2.0, 3.0]
    assert [event.value for event in found.Scalars("collect/reward")] == [2.0]


def test_mlflow_gets_a_point_per_episode(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    writer = MlflowWriter("episodes", tracking_uri=tmp_path)
    play(writer, (1, 2))
    writer.close()
    client = MlflowClient(tmp_path.absolute().as_uri())
    experiment = client.get_experiment_by_name("episodes")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "reward")
    assert sorted(point.value for point in history) == [1.0, 2.0]


def test_a_writer_that_looks_at_beginnings_alone_hears_of_each() -> None:
    class Begins(LogWriter):
        begun = 0

        def on_env_reset(self, env_id: int, obs: Any) -> None:
            super().on_env_reset(env_id, obs)
            self.begun += 1

    writer = Begins()
    play(writer, (1, 2, 3))
    assert writer.begun == writer.global_episode == 3


def test_a_writer_may_override_the_beginning_of_an_episode_without_calling_its_base() -> None:
    class Begins(LogWriter):
        def __init__(self) -> None:
            super().__init__()
            self.begun = 0
            self.lengths: list[int] = []

        def on_env_reset(self, env_id: int, obs: Any) -> None:
            self.begun += 1

        def log_episode(self, length: int, rewards: list[float], contents: Any) -> None:
            self.lengths.append(length)

    writer = Begins()
    play(writer, (1, 2, 3))
    assert (writer.begun, sorted(writer.lengths)) == (3, [1, 2, 3])
