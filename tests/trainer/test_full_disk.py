"""A disk that fills up during a run: the run waits for room or ends with what to do, and nothing is lost."""

import errno
import json
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.algorithm import Algorithm
from sharpen.errors import DiskFullError
from sharpen.store import SQLiteStore
from sharpen.trainer import Trainer
from tests.errors import raises
from tests.runs.internals import naming_full_disk

from .scenes import double, small_trainer, until

SIZE_BYTES = 6_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room; removing the file that is given back makes some."""
    ballast = disk / "ballast"
    handle = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, b"x" * 4096)
    except OSError:
        return ballast
    finally:
        os.close(handle)


class Warnings(logging.Handler):
    """Says when the first warning about the disk has come."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.about_disk = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "the disk is full" in record.getMessage():
            self.about_disk.set()


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    handler = Warnings()
    logging.getLogger("sharpen").addHandler(handler)
    yield handler
    logging.getLogger("sharpen").removeHandler(handler)


async def test_a_run_waits_for_room_and_loses_nothing(
    small_disk: Path, warnings: Warnings, capfd: pytest.CaptureFixture[str]
) -> None:
    run = small_disk / "run"
    trainer = Trainer(algorithm="Baseline", n_runners=1, run_dir=run, dashboard=False)

    def make_it_full() -> None:
        until(lambda: (run / "metrics.jsonl").exists())
        ballast = fill(small_disk)
        warnings.about_disk.wait()
        ballast.unlink()

    filling = threading.Thread(target=make_it_full, daemon=True)
    filling.start()
    result = await trainer.fit_async(lambda task: float(task), range(40), range(40))
    filling.join()
    assert (result.status, result.metrics["rollouts"], result.metrics["succeeded"]) == ("succeeded", 80, 80)
    shown = capfd.readouterr().err
    assert "Traceback" not in shown
    assert "Logging error" not in shown
    assert len([line for line in shown.splitlines() if "WARNING" in line or "ERROR" in line]) < 20
    store = SQLiteStore(run / "store.db", read_only=True)
    attempts = [await store.query_attempts(each.rollout_id) for each in await store.query_rollouts()]
    await store.close()
    assert [len(each) for each in attempts] == [1] * 80


class Writing(Algorithm[Any]):
    """Keeps what it has done, then writes a file of its own."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.done: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        for task in train_dataset:
            if task not in self.done:
                rollout = await self.get_store().enqueue_rollout(task)
                await self.get_store().wait_for_rollouts(rollout_ids=[rollout.rollout_id])
                self.done.append(task)
                self.checkpoint()
        assert self.run_dir is not None
        (self.run_dir / "weights").write_bytes(b"x" * self.size_bytes)


def test_a_run_whose_algorithm_finds_the_disk_full_ends_with_what_to_do_and_can_be_resumed(small_disk: Path) -> None:
    run = small_disk / "run"
    first = small_trainer(algorithm=Writing(2 * SIZE_BYTES), run_dir=run, store=None)
    with pytest.raises(DiskFullError) as caught:
        first.fit(double, range(5))
    assert str(run) in str(caught.value)
    (run / "weights").unlink()
    result = small_trainer(algorithm=Writing(1000), store=None).fit(double, range(5), resume=run)
    assert (result.status, result.metrics["rollouts"]) == ("succeeded", 5)


class Keeping(Algorithm[Any]):
    """Checkpoints and reports with room, without, and with room again."""

    def __init__(self, disk: Path) -> None:
        self.disk, self.size = disk, 1
        self.kept: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"filling": "x" * self.size}

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        assert self.run_dir is not None
        file = self.run_dir / "checkpoints" / "algorithm.json"
        for self.size in (1, 200_000, 300_000):
            ballast = fill(self.disk) if self.size == 200_000 else None
            self.report_iteration({"size": self.size})
            self.checkpoint()
            self.kept.append(len(json.loads(file.read_text("utf-8"))["filling"]))
            if ballast is not None:
                ballast.unlink()


def test_a_checkpoint_that_finds_no_room_leaves_the_last_one_and_metrics_are_written_later(small_disk: Path) -> None:
    algorithm = Keeping(small_disk)
    result = small_trainer(algorithm=algorithm, run_dir=small_disk / "run").fit(double, [])
    assert result.status == "succeeded"
    assert algorithm.kept == [1, 1, 300_000]
    lines = [json.loads(line) for line in (small_disk / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["train/size"] for line in lines if "train/size" in line] == [1, 200_000, 300_000]


def test_text_about_a_full_disk_in_another_error_is_not_a_full_disk(tmp_path):
    with raises(ValueError, "upstream"), naming_full_disk(tmp_path):
        raise ValueError("the upstream said: No space left on device (os error 28)")


def test_the_disk_that_is_full_is_named_where_it_is_not_that_of_the_run(tmp_path):
    with raises(DiskFullError, "/dev/full"), naming_full_disk(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device", "/dev/full")
