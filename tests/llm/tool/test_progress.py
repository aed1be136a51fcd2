"""What a job tells while it trains, and how it hears the word to stop."""

import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharpen.callbacks import Callback
from tests.llm.internals import JobStopped, ProgressFile, StopRequest, tool_job as progress


def loop_at(step: int, **metrics: float) -> Any:
    return SimpleNamespace(current_iter=step, metrics=metrics, should_stop=False, current_stage="train")


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    request = StopRequest()
    request.listen()
    yield request
    for number, handler in before.items():
        signal.signal(number, handler)


def test_progress_is_written_at_the_start_and_at_the_end(tmp_path: Path, stop: StopRequest) -> None:
    path = tmp_path / "status.json"
    callback = ProgressFile(path, stop, total_steps=4)
    assert isinstance(callback, Callback)
    callback.on_fit_start(loop_at(1), None)
    assert json.loads(path.read_text(encoding="utf-8"))["eta_seconds"] is None
    callback.on_iter_end(loop_at(2, loss=0.5), None)
    callback.on_fit_end(loop_at(3, reward=float("nan")), None)
    told = json.loads(path.read_text(encoding="utf-8"))
    assert (told["step"], told["total_steps"], told["fraction"]) == (3, 4, 0.75)
    assert told["metrics"] == {"loss": 0.5, "reward": None}
    assert told["eta_seconds"] == pytest.approx(told["seconds_per_step"])


def test_progress_is_not_written_after_every_step(
    tmp_path: Path, stop: StopRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    path = tmp_path / "status.json"
    callback = ProgressFile(path, stop, total_steps=None)
    callback.on_fit_start(loop_at(0), None)
    written = []
    for step in range(1, 101):
        now[0] += 0.1
        callback.on_iter_end(loop_at(step), None)
        written.append(json.loads(path.read_text(encoding="utf-8"))["step"])
    assert 15 <= len(set(written)) <= 21


def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, stop: StopRequest, caplog: pytest.LogCaptureFixture
) -> None:
    callback = ProgressFile(tmp_path / "missing" / "status.json", stop, total_steps=4)
    with caplog.at_level(logging.WARNING):
        callback.on_fit_start(loop_at(0), None)
        callback.on_fit_end(loop_at(1), None)
    (warning,) = caplog.records
    assert str(tmp_path / "missing" / "status.json") in warning.getMessage()


def test_the_word_to_stop_ends_a_training_after_its_step(tmp_path: Path, stop: StopRequest) -> None:
    callback = ProgressFile(tmp_path / "status.json", stop, total_steps=4)
    callback.on_fit_start(loop_at(0), None)
    os.kill(os.getpid(), signal.SIGTERM)
    loop = loop_at(1)
    callback.on_iter_end(loop, None)
    assert loop.should_stop


def test_outside_of_training_the_word_to_stop_acts_at_once(stop: StopRequest) -> None:
    with pytest.raises(JobStopped):
        os.kill(os.getpid(), signal.SIGTERM)
    stop.is_over = True
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.is_asked


def test_a_word_that_came_too_early_is_heard(tmp_path: Path, stop: StopRequest) -> None:
    stop.check(tmp_path / "stop.json")
    (tmp_path / "stop.json").touch()
    with pytest.raises(JobStopped):
        stop.check(tmp_path / "stop.json")
