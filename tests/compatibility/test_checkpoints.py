"""Checkpoints of an earlier version: training goes on from them to the numbers that it would have come to there."""

from pathlib import Path

import pytest
import torch

from . import reading
from .packed import Packed
from .programs.recorded_agents import NOTES
from .programs.training import fine_tune, grpo, simulate
from .reading import assert_near


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lora_rank"), [("grpo", 0), ("grpo-lora", 2)])
def test_a_killed_training_of_the_model_behind_an_agent(
    packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, lora_rank: int
) -> None:
    run, recorded = packed.unpack(name, tmp_path), packed.recorded(name)
    notes = tmp_path / "notes"
    monkeypatch.setenv(NOTES, str(notes))
    grpo(packed.unpack("model", tmp_path), run, lora_rank=lora_rank, steps=4, resume=True)
    assert_near(reading.training_of(run), recorded["training"])
    assert not reading.began(notes).keys() & set(recorded["finished"])
    assert set(recorded["finished"]) < set(reading.finished(run))


@pytest.mark.parametrize(
    "kind", ["sft", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sft-lora", "grpo-trl", "dpo"))]
)
def test_a_killed_fine_tuning(packed: Packed, tmp_path: Path, kind: str) -> None:
    out = packed.unpack(kind, tmp_path)
    newest = max(out.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    result = fine_tune(kind, packed.unpack("model", tmp_path), out, resume=True)
    assert Path(result["resumed_from"]) == newest
    assert_near(reading.fine_tuning_of(out), packed.recorded(kind))


@pytest.mark.parametrize("kind", ["ppo", "dqn", "sac"])
def test_a_policy_in_a_simulator(packed: Packed, tmp_path: Path, kind: str) -> None:
    checkpoint = packed.unpack(kind, tmp_path) / "latest.pth"
    assert_near(simulate(kind, iterations=6, ckpt_path=checkpoint), packed.recorded(kind))
