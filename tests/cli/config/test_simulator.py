"""The kind `simulator`: what its configuration may hold, and its runs."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sharpen.cli import main
from sharpen.errors import ConfigError, DiskFullError
from tests.archive.internals import RunEntry
from tests.cli.internals import RecordedRun, load_config, make_plan, make_vessel, train_policy
from tests.cli.projects import write
from tests.errors import raises

CONFIG = """
kind: simulator
simulator_fn: tests.rl.toys.Countdown
state_interpreter: {type: tests.rl.toys.Left}
action_interpreter: {type: tests.rl.toys.Two}
reward: {type: tests.rl.toys.InitialAsReward}
policy: {type: PPO, network: {type: MLP, hidden_sizes: [4]}, lr: 1e-3, seed: 0}
train_initial_states: {range: [1, 5]}
val_initial_states: [2, 4]
episode_per_iter: 4
max_iters: 3
val_every_n_iters: 2
finite_env_type: dummy
seed: 1
loggers: []
"""


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def only_run(root: Path) -> Path:
    (found,) = root.iterdir()
    return found


def test_policy_and_network_are_given_the_spaces_of_the_interpreters(tmp_path: Path) -> None:
    vessel = make_vessel(load_config(write(tmp_path, CONFIG), ["policy.network.hidden_sizes=[8, 8]"]))
    assert vessel.policy.obs_space.shape == (2,)
    assert vessel.policy.action_space.n == 2
    assert list(vessel.train_initial_states) == [1, 2, 3, 4]


def test_the_seed_of_the_run_makes_the_first_weights(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, CONFIG))
    first, second = (make_vessel(config).policy.module.state_dict() for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("max_iter=3", ("max_iter", "max_iters")),
        ("policy.learning_rate=3", ("PPO", "learning_rate")),
        ("policy.network.hidden=[3]", ("MLP", "hidden", "hidden_sizes")),
        ("policy.type=PPPO", ("PPPO", "PPO")),
        ("simulator_fn=null", ("simulator_fn",)),
        ("train_initial_states={range: [1, 2, 0]}", ("[1, 2, 0]",)),
        ("vessel=own.py:make", ("simulator_fn",)),
    ],
)
def test_what_is_wrong_is_told_when_the_configuration_is_read(
    tmp_path: Path, override: str, named: tuple[object, ...]
) -> None:
    with raises(ConfigError, *named):
        load_config(write(tmp_path, CONFIG), [override])


def test_a_plan_counts_the_episodes(tmp_path: Path) -> None:
    plan = make_plan(load_config(write(tmp_path, CONFIG)))
    assert plan.bound == {"iterations": 3, "episodes": 3 * 4 + 1 * 2}
    assert plan.datasets == {"train": 4, "val": 2, "test": 0}
    assert plan.parts["policy"] == "sharpen.rl.policies.ppo.PPO"


@pytest.mark.parametrize(
    ("overrides", "iterations", "episodes"),
    [
        (["max_steps=1000", "step_per_iter=300", "max_iters=null"], 4, None),
        (["max_steps=1000", "step_per_iter=300", "max_iters=2"], 2, None),
        (["max_steps=1000", "step_per_iter=300", "max_iters=50"], 4, None),
        (["max_steps=10", "max_iters=null"], 3, 3 * 4 + 1 * 2),  # an episode has one step at least
        (["max_steps=10", "max_iters=null", "fast_dev_run=2"], 5, 5 * 2 + 2 * 2),
        (["max_iters=null"], None, None),
    ],
)
def test_a_plan_is_bounded_by_the_budget_of_steps(
    tmp_path: Path, overrides: list[str], iterations: int | None, episodes: int | None
) -> None:
    plan = make_plan(load_config(write(tmp_path, CONFIG), overrides))
    assert plan.bound == {"iterations": iterations, "episodes": episodes}
    assert any("max_steps" in each for each in plan.because) is ("max_steps" in overrides[0])


def test_a_run_shows_how_many_steps_training_made(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "p", CONFIG))
    assert main(["train", path, "max_steps=25", "max_iters=null"]) == 0  # four episodes of 1 to 4 steps an iteration
    assert [line["run/steps"] for line in lines(only_run(own_runs) / "metrics.jsonl") if "reward" in line] == [
        10,
        20,
        30,
    ]
    capsys.readouterr()
    assert main(["runs", "show", "last"]) == 0
    assert re.search(r"^ *steps +30$", capsys.readouterr().out, re.MULTILINE)


def test_a_run_leaves_metrics_episodes_a_checkpoint_and_how_it_ended(tmp_path: Path, own_runs: Path) -> None:
    result = train_policy(load_config(write(tmp_path / "p", CONFIG)))
    folder = only_run(own_runs)
    assert (result.status, result.run_dir) == ("succeeded", folder)
    assert result.metrics["val/reward"] == 3.0  # of the last validation
    episodes = lines(folder / "episodes.jsonl")
    assert len(episodes) == 14
    assert [each["stage"] for each in episodes].count("val") == 2
    assert (folder / "checkpoints" / "latest.pth").exists()
    assert (folder / "train.yaml").is_file()
    assert json.loads((folder / "config.json").read_text())["kind"] == "simulator"
    entry = RunEntry.of(folder)
    assert (entry.state, entry.algorithm) == ("succeeded", "PPO")
    assert entry.metrics["val/reward"] == 3.0


def test_a_resumed_run_ends_as_one_that_was_never_stopped(tmp_path: Path, own_runs: Path) -> None:
    path = write(tmp_path / "p", CONFIG)
    whole = train_policy(load_config(path, ["name=whole", "max_iters=4"]))
    part = train_policy(load_config(path, ["name=part"]))
    resumed = train_policy(load_config(path, ["name=part", "max_iters=4"]), resume=part.run_dir)
    assert resumed.run_dir == part.run_dir
    assert resumed.metrics == whole.metrics
    assert resumed.seconds > part.seconds
    assert len(lines(resumed.run_dir / "episodes.jsonl")) == len(lines(whole.run_dir / "episodes.jsonl"))  # type: ignore[operator]


def test_a_full_disk_ends_the_run_with_what_to_do(tmp_path: Path, own_runs: Path) -> None:
    config = load_config(write(tmp_path / "p", CONFIG))
    run = RecordedRun(config, default_name="full", resume=None)
    with raises(DiskFullError, run.folder.path):
        run.execute({}, lambda _: {"bytes": Path("/dev/full").write_bytes(b"x")})
    assert RunEntry.of(only_run(own_runs)).state == "failed"


def test_ctrl_c_keeps_the_iteration_and_the_run_goes_on(tmp_path: Path, own_runs: Path) -> None:
    path = write(tmp_path / "p", CONFIG)
    config = load_config(path, ["max_iters=100000"])

    def press() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not list(own_runs.glob("*/metrics.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        train_policy(config)
    pressing.join()
    folder = only_run(own_runs)
    assert RunEntry.of(folder).state == "interrupted"
    done = lines(folder / "metrics.jsonl")[-1]["step"]
    longer = train_policy(load_config(path, [f"max_iters={done + 1}"]), resume=folder)
    assert (longer.status, lines(folder / "metrics.jsonl")[-1]["step"]) == ("succeeded", done + 1)


def test_a_run_of_another_kind_is_not_resumed(tmp_path: Path, own_runs: Path) -> None:
    path = write(tmp_path / "p", CONFIG)
    folder = train_policy(load_config(path, ["max_iters=1"])).run_dir
    assert folder is not None
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "kind": "fine-tuning"}))
    with raises(ConfigError, "fine-tuning", "simulator"):
        train_policy(load_config(path), resume=folder)


def test_a_policy_is_measured_with_and_without_the_checkpoint_of_a_run(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "p", CONFIG))
    assert main(["train", path, "max_iters=1", "--json"]) == 0
    capsys.readouterr()
    assert main(["eval", path, "--run", "last", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["episodes"], found["reward"]["mean"]) == (2, 3.0)
    assert found["checkpoint"].endswith("checkpoints/latest.pth")
    assert main(["eval", path, "--dataset", "test"]) == 2
    assert "has no test_initial_states" in capsys.readouterr().err


def test_a_vessel_of_ones_own_is_made_by_its_function(tmp_path: Path, own_runs: Path) -> None:
    own = """
        from sharpen.rl import TrainingVessel
        from tests.rl.toys import Countdown, InitialAsReward, Left, Two, Zeros
        def make():
            return TrainingVessel(
                simulator_fn=Countdown, state_interpreter=Left(), action_interpreter=Two(), policy=Zeros(),
                reward=InitialAsReward(), train_initial_states=[1, 2], episode_per_iter=2,
            )
    """
    config = "kind: simulator\nvessel: own.py:make\nmax_iters: 1\nfinite_env_type: dummy\nloggers: []\n"
    result = train_policy(load_config(write(tmp_path / "p", config, own__py=own)))
    assert result.metrics["reward"] == 1.5
