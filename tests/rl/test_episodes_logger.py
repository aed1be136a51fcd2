"""Every episode of a run as a line."""

import json
from pathlib import Path
from typing import Any

from sharpen.rl import Trainer, TrainingVessel
from tests.rl.internals import EpisodesLogger
from tests.rl.toys import Countdown, InitialAsReward, Left, Two, Zeros


def vessel() -> TrainingVessel[Any, Any, Any, Any, Any]:
    return TrainingVessel(
        simulator_fn=Countdown,
        state_interpreter=Left(),
        action_interpreter=Two(),
        policy=Zeros(),
        reward=InitialAsReward(),
        train_initial_states=[1, 2, 3],
        val_initial_states=[4],
        episode_per_iter=3,
    )


def trainer(folder: Path, max_iters: int) -> Trainer:
    logger = EpisodesLogger(folder)
    made = Trainer(
        max_iters=max_iters, val_every_n_iters=2, loggers=[logger], finite_env_type="dummy", concurrency=1, seed=1
    )
    logger.follow(made)
    return made


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def test_a_line_has_iteration_stage_length_reward_and_what_was_logged(tmp_path: Path) -> None:
    trainer(tmp_path, 2).fit(vessel())
    found = lines(tmp_path)
    assert [each["stage"] for each in found] == ["train"] * 6 + ["val"]
    assert [each["iteration"] for each in found] == [1, 1, 1, 2, 2, 2, 2]
    assert [each["episode"] for each in found] == list(range(1, 8))
    assert sorted(each["length"] for each in found[:3]) == [1, 2, 3]
    assert all(each["reward"] == each["length"] == each["initial"] for each in found)


def test_a_resumed_run_goes_on_after_its_state_and_drops_what_came_later(tmp_path: Path) -> None:
    first = trainer(tmp_path, 2)
    first.fit(vessel())
    state = first.loggers[0].state_dict()
    whole = lines(tmp_path)
    with open(tmp_path / "episodes.jsonl", "a") as file:
        file.write('{"of": "a run that was killed"')
    second = trainer(tmp_path, 1)
    second.loggers[0].load_state_dict(state)
    second.fit(vessel())
    found = lines(tmp_path)
    assert found[: len(whole)] == whole
    assert [each["episode"] for each in found[len(whole) :]] == [8, 9, 10]


def test_without_a_trainer_a_line_has_no_iteration(tmp_path: Path) -> None:
    logger = EpisodesLogger(tmp_path)
    logger.on_env_episode(0, [1.0, float("inf")], [])
    logger.flush()
    (found,) = lines(tmp_path)
    assert (found["iteration"], found["reward"], found["length"]) == (None, "inf", 2)
