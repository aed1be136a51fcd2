"""VERL on several devices: which are used, and that a run is the same as on one."""

import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen import VERL
from sharpen.callbacks import Callback
from sharpen.llm import TrainingError
from tests.algorithm.internals import verl_learner as policies
from tests.errors import raises
from tests.execution.processes import child_pids, eventually, is_running
from tests.llm.tiny_models import write_tiny_model

from .scenes import fit, small_grpo
from .test_training import BreakOff, lines


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU twice stands for two GPUs."""
    monkeypatch.setattr(policies, "gpus", lambda wanted: ["cpu"] * wanted if wanted else [])


def test_a_machine_without_gpus_runs_what_was_written_for_eight(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with caplog.at_level(logging.INFO):
        assert policies.gpus(8) == []
    assert "n_gpus_per_node is 8" in caplog.text


def test_a_config_for_more_gpus_than_there_are_takes_those(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert policies.gpus(8) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert policies.gpus(2) == ["cuda:0", "cuda:1"]
    assert policies.gpus(None) == policies.gpus(1) == []


def rank_pids() -> list[int]:
    found = []
    for pid in child_pids():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"ranks.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


class KillRank(Callback):
    """Ends a rank as the kernel would where memory runs out."""

    def __init__(self, algorithm: VERL) -> None:
        self._algorithm = algorithm
        self.pids: list[int] = []
        self.listed: list[tuple[str, str]] = []

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        if loop.current_iter == 1:
            gateway: Any = self._algorithm.get_llm_proxy()
            self.listed = [(each["model_name"], each["base_url"]) for each in gateway.model_list]
            self.pids = rank_pids()
            os.kill(self.pids[0], signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("two_devices")
def test_a_run_of_two_ranks_is_that_of_one_and_goes_on_with_one(tiny: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"store": "sqlite"}
    fit(small_grpo(tiny, steps=4, learning_rate=1e-3), tmp_path / "one", **options)
    two = small_grpo(tiny, steps=4, learning_rate=1e-3, config={"trainer.n_gpus_per_node": 2})
    with pytest.raises(RuntimeError):
        fit(two, tmp_path / "two", callbacks=[BreakOff(2)], **options)
    eventually(lambda: not rank_pids(), "the end of the ranks")
    fit(small_grpo(tiny, steps=4, learning_rate=1e-3), tmp_path / "two", resume=tmp_path / "two", **options)
    assert [row["step"] for row in lines(tmp_path / "two")] == [1, 2, 3, 4]
    for ours, theirs in zip(lines(tmp_path / "two"), lines(tmp_path / "one"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("two_devices")
def test_a_run_with_divided_weights_is_that_of_one_and_goes_on_with_one(tiny: Path, tmp_path: Path) -> None:
    """Its ranks sample for the agents with copies that follow the training."""
    divided = {"trainer.n_gpus_per_node": 2, "actor_rollout_ref.actor.strategy": "fsdp2"}
    learning: dict[str, Any] = {"steps": 3, "learning_rate": 1e-3}
    fit(small_grpo(tiny, **learning), tmp_path / "one", store="sqlite")
    with pytest.raises(RuntimeError):
        fit(small_grpo(tiny, **learning, config=divided), tmp_path / "two", callbacks=[BreakOff(2)], store="sqlite")
    eventually(lambda: not rank_pids(), "the end of the ranks")
    assert not torch.distributed.is_initialized()
    fit(small_grpo(tiny, **learning), tmp_path / "two", resume=tmp_path / "two", store="sqlite")
    for ours, theirs in zip(lines(tmp_path / "two"), lines(tmp_path / "one"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("two_devices")
def test_a_killed_rank_ends_the_run_in_words_and_no_process_stays(tiny: Path, tmp_path: Path) -> None:
    algorithm = small_grpo(tiny, steps=6, config={"trainer.n_gpus_per_node": 2})
    killer = KillRank(algorithm)
    with raises(TrainingError, 1, "SIGKILL"):
        fit(algorithm, tmp_path / "run", callbacks=[killer])
    assert len(killer.pids) == 1
    assert len({url for _, url in killer.listed}) == 2  # agents are spread over both ranks
    assert len(set(killer.listed)) == len(killer.listed) == 4  # for training and for validation
    assert not any(map(is_running, killer.pids))
    assert not rank_pids()
