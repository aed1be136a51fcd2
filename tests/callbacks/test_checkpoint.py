"""Checkpoints: when, under which name, how many, and what a crash leaves."""

import logging
import math
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sharpen.callbacks import Checkpoint, load_state
from sharpen.errors import ConfigError
from tests.errors import raises

from .loops import CountingLoop


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def iteration_of(path: Path) -> int:
    number: int = load_state(path)["current_iter"]
    return number


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


# -- when --------------------------------------------------------------------------------------------


def test_every_n_iterations_saves_after_n_two_n_and_so_on(tmp_path: Path) -> None:
    CountingLoop([Checkpoint(tmp_path, every_n_iters=3, save_on_fit_end=False)]).fit(7)
    assert names(tmp_path) == ["003.pth", "006.pth", "latest.pth"]
    assert [iteration_of(tmp_path / name) for name in names(tmp_path)] == [3, 6, 6]


def test_the_end_of_a_run_is_saved_once(tmp_path: Path) -> None:
    CountingLoop([Checkpoint(tmp_path / "only", save_latest=None)]).fit(4)
    CountingLoop([Checkpoint(tmp_path / "both", save_latest=None, every_n_iters=2)]).fit(4)
    assert names(tmp_path / "only") == ["004.pth"]
    assert names(tmp_path / "both") == ["002.pth", "004.pth"]


def test_a_time_interval_saves_when_it_has_passed(tmp_path: Path) -> None:
    clock = Clock()

    class Slow(Checkpoint):
        def on_iter_end(self, *args: Any) -> None:
            clock.now += 10
            super().on_iter_end(*args)

    CountingLoop([Slow(tmp_path, time_interval=25, save_latest=None, save_on_fit_end=False, clock=clock)]).fit(8)
    assert names(tmp_path) == ["003.pth", "006.pth"]


def test_a_run_can_be_extended_and_saves_go_on(tmp_path: Path) -> None:
    CountingLoop([Checkpoint(tmp_path, every_n_iters=2, keep_last=2)]).fit(4)
    loop = CountingLoop([Checkpoint(tmp_path, every_n_iters=2, keep_last=2)])
    loop.fit(7, state=load_state(tmp_path / "latest.pth"))
    assert names(tmp_path) == ["006.pth", "007.pth", "latest.pth"]
    assert loop.trained.values.tolist() == [7, 7, 7]


# -- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("{iter:03d}-{val/reward:.2f}.pth", "002-7.50.pth"),
        ("model-{loss:.1f}.safetensors", "model-0.5.safetensors"),
        ("fixed.pth", "fixed.pth"),
        ("{iter}{{x}}.pth", "2{x}.pth"),
    ],
)
def test_names_are_made_of_iteration_and_metrics(tmp_path: Path, filename: str, expected: str) -> None:
    CountingLoop([Checkpoint(tmp_path, filename, save_latest=None)], rewards=[7.5]).fit(2)
    assert names(tmp_path) == [expected]


def test_a_name_may_hold_the_time(tmp_path: Path) -> None:
    CountingLoop([Checkpoint(tmp_path, "{time}.pth", save_latest=None, clock=Clock())]).fit(1)
    assert re.fullmatch(r"202311\d{8}\.pth", names(tmp_path)[0])


def test_a_metric_with_dots_in_its_name_is_found(tmp_path: Path) -> None:
    loop = CountingLoop([Checkpoint(tmp_path, "{a.b[0]/c:.0f}.pth", save_latest=None)])
    loop.metrics["a.b[0]/c"] = 3.0
    loop.fit(0)
    assert names(tmp_path) == ["3.pth"]


def test_a_metric_that_is_missing_is_nan_in_the_name_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        CountingLoop([Checkpoint(tmp_path, "{iter}-{val/x:.2f}.pth", every_n_iters=1, save_latest=None)]).fit(2)
    assert names(tmp_path) == ["1-nan.pth", "2-nan.pth"]
    assert len(caplog.records) == 1
    assert all(name in caplog.text for name in ("val/x", "iter, time, loss"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"filename": "a/{iter}.pth"}, ("filename",)),
        ({"filename": "{}.pth"}, ("filename",)),
        ({"filename": "{iter:zz}.pth"}, ("filename",)),
        ({"filename": "{iter.pth"}, ("filename",)),
        ({"filename": ""}, ("filename",)),
        ({"filename": "latest.pth"}, ("filename",)),
        ({"every_n_iters": 0}, ("every_n_iters", 0)),
        ({"keep_last": 0}, ("keep_last", 0)),
        ({"keep_best": -1}, ("keep_best", -1)),
        ({"time_interval": 0}, ("time_interval", 0)),
        ({"save_latest": "yes"}, ("save_latest", "yes")),
        ({"mode": "best"}, ("mode", "best")),
    ],
)
def test_settings_that_cannot_work_are_refused(
    tmp_path: Path, settings: dict[str, Any], named: tuple[object, ...]
) -> None:
    with raises(ConfigError, *named):
        Checkpoint(tmp_path, **settings)


# -- the latest one ----------------------------------------------------------------------------------


def test_the_link_to_the_latest_one_resolves_for_a_relative_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    CountingLoop([Checkpoint("runs/checkpoints", every_n_iters=1)]).fit(2)
    link = tmp_path / "runs" / "checkpoints" / "latest.pth"
    assert os.readlink(link) == "002.pth"
    assert iteration_of(link) == 2
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert iteration_of(tmp_path / "moved" / "checkpoints" / "latest.pth") == 2


def test_the_latest_one_may_be_a_copy(tmp_path: Path) -> None:
    CountingLoop([Checkpoint(tmp_path, save_latest="copy", every_n_iters=1, keep_last=1)]).fit(3)
    assert names(tmp_path) == ["003.pth", "latest.pth"]
    assert not (tmp_path / "latest.pth").is_symlink()
    assert iteration_of(tmp_path / "latest.pth") == 3


# -- how many ----------------------------------------------------------------------------------------

REWARDS = [3.0, 9.0, 1.0, 7.0, 8.0, 2.0]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"keep_last": 2}, [5, 6]),
        ({"keep_best": 2}, [2, 5, 6]),
        ({"keep_best": 2, "mode": "min"}, [3, 6]),
        ({"keep_best": 1, "keep_last": 2}, [2, 5, 6]),
        ({"keep_best": 2, "monitor": "loss", "mode": "min"}, [5, 6]),
        ({"keep_best": 2, "monitor": "absent"}, [6]),
        ({}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_only_the_last_and_the_best_are_kept(tmp_path: Path, settings: dict[str, Any], kept: list[int]) -> None:
    checkpoint = Checkpoint(tmp_path, "{iter}.pth", save_latest=None, every_n_iters=1, **settings)
    CountingLoop([checkpoint], rewards=REWARDS).fit(6)
    assert names(tmp_path) == [f"{number}.pth" for number in kept]
    assert checkpoint.last_path == tmp_path / "6.pth"


def test_the_best_one_can_be_asked_for_and_nan_never_is_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, every_n_iters=1, keep_best=1)
    assert checkpoint.best_path is None
    assert checkpoint.last_path is None
    CountingLoop([checkpoint], rewards=[1.0, math.nan, 0.5]).fit(3)
    assert checkpoint.best_path == tmp_path / "001.pth"


def test_a_resumed_run_keeps_what_one_without_a_pause_keeps(tmp_path: Path) -> None:
    def checkpoint(folder: str) -> Checkpoint:
        return Checkpoint(tmp_path / folder, every_n_iters=1, keep_best=2, keep_last=2)

    CountingLoop([checkpoint("whole")], rewards=REWARDS).fit(6)
    CountingLoop([checkpoint("halves")], rewards=REWARDS).fit(3)
    resumed = checkpoint("halves")
    CountingLoop([resumed], rewards=REWARDS).fit(6, state=load_state(tmp_path / "halves" / "latest.pth"))
    assert names(tmp_path / "halves") == names(tmp_path / "whole")
    assert load_state(tmp_path / "halves" / "latest.pth")["callbacks"]["checkpoint"]["saved"][-1]["iter"] == 6


def test_one_name_for_all_is_written_again_and_again(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "model.pth", save_latest=None, every_n_iters=1, keep_last=1)
    CountingLoop([checkpoint]).fit(3)
    assert names(tmp_path) == ["model.pth"]
    assert iteration_of(tmp_path / "model.pth") == 3


# -- what goes wrong ---------------------------------------------------------------------------------


def test_a_checkpoint_that_cannot_be_written_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, every_n_iters=1)
    loop = CountingLoop([checkpoint]).fit(1)
    before = checkpoint.state_dict()
    loop.metrics["broken"] = object()  # type: ignore[assignment]
    with raises(TypeError, "state['metrics']['broken']"):
        checkpoint.save(loop)
    assert checkpoint.state_dict() == before
    assert iteration_of(tmp_path / "latest.pth") == 1


def test_leftovers_of_killed_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f".001.pth.{dead.pid}-0.tmp", f".001.pth.{os.getpid()}-0.tmp", ".mine.tmp"):
        (tmp_path / name).touch()
    CountingLoop([Checkpoint(tmp_path, save_latest=None)]).fit(1)
    assert names(tmp_path) == [f".001.pth.{os.getpid()}-0.tmp", ".mine.tmp", "001.pth"]


CHILD = """
import sys
from pathlib import Path

import numpy as np

from sharpen.callbacks import Callback, Checkpoint, load_state
from tests.callbacks.loops import CountingLoop

class Acknowledge(Callback):
    def on_iter_end(self, loop, trained):
        print(loop.current_iter, flush=True)

folder, latest = Path(sys.argv[1]), sys.argv[2]
loop = CountingLoop([Checkpoint(folder, every_n_iters=1, keep_last=2, save_latest=latest), Acknowledge()])
loop.trained.values = np.zeros(20_000)
loop.fit(10**9, state=load_state(folder / "latest.pth") if (folder / "latest.pth").exists() else None)
"""


def kill_again_and_again(folder: Path, repository: Path, *, latest: str, rounds: int) -> None:
    chance, reached = random.Random(rounds), 0
    for _ in range(rounds):
        command = [sys.executable, "-c", CHILD, str(folder), latest]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=repository) as child:
            assert child.stdout is not None
            assert int(child.stdout.readline()) == reached + 1
            time.sleep(chance.uniform(0.0, 0.05))  # not a wait: the kill may come at any moment
            child.kill()
            acknowledged = [int(line) for line in child.stdout if line.endswith("\n")]
        reached = iteration_of(folder / "latest.pth")
        assert reached >= max(acknowledged, default=0)
        assert len([name for name in names(folder) if name.endswith(".pth")]) <= 5


@pytest.mark.parametrize("latest", ["link", "copy"])
def test_a_killed_process_leaves_a_loadable_checkpoint(tmp_path: Path, repository: Path, latest: str) -> None:
    kill_again_and_again(tmp_path, repository, latest=latest, rounds=4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("latest", ["link", "copy"])
def test_a_process_killed_a_hundred_times_goes_on_each_time(tmp_path: Path, repository: Path, latest: str) -> None:
    kill_again_and_again(tmp_path, repository, latest=latest, rounds=100)
