"""Before the first step: how many parameters train, and a run whose optimiser cannot fit is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen.errors import ConfigError
from sharpen.llm import SFTTrainerWrapper
from tests.errors import raises
from tests.llm.internals import (
    check_memory,
    checkpoints,
    describe_parameters,
    free_bytes,
    training_preflight as preflight,
)

from .scenes import metric_lines, sft_rows


@pytest.fixture
def model() -> torch.nn.Module:
    """1000 weights of four bytes, of which 100 train."""
    frozen, trained = torch.nn.Linear(30, 30, bias=False), torch.nn.Linear(10, 10, bias=False)
    frozen.requires_grad_(requires_grad=False)
    return torch.nn.Sequential(frozen, trained)


def limit(folder: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """A container that has so many bytes left, 500 of them in the cache of files."""
    monkeypatch.setattr(preflight, "_CGROUP", folder)
    (folder / "memory.max").write_text("1000000\n")
    (folder / "memory.current").write_text(f"{1000000 - free + 500}\n")
    (folder / "memory.stat").write_text("anon 5\ninactive_file 500\n")


def test_the_parameters_that_train_are_counted(model: torch.nn.Module) -> None:
    assert describe_parameters(model) == "100 of 1,000 parameters train (10 %)"


@pytest.mark.parametrize(("optim", "needed"), [("adamw_torch", 1200), ("adamw_torch_fused", 1200), ("sgd", 400)])
def test_what_the_optimiser_is_sure_to_take_must_fit(
    model: torch.nn.Module, optim: str, needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(tmp_path, monkeypatch, free=needed)
    check_memory(model, optim=optim, device="cpu")
    limit(tmp_path, monkeypatch, free=needed - 1)
    with raises(ConfigError, "100", "use_lora=True"):
        check_memory(model, optim=optim, device="cpu")


def test_the_memory_of_the_machine_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(tmp_path, monkeypatch, free=700005)
    assert free_bytes("cpu") == 700005
    (tmp_path / "memory.max").write_text("max\n")
    free = free_bytes("cpu")
    assert free is not None
    assert free > 1000000
    monkeypatch.setattr(preflight, "_CGROUP", tmp_path / "none")
    assert free_bytes("cpu") is not None


def test_a_run_that_cannot_fit_is_refused_and_writes_nothing(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(tmp_path, monkeypatch, free=1000)
    with raises(ConfigError, "parameters", "use_lora=True"):
        SFTTrainerWrapper(str(tiny_model), sft_rows(4), tmp_path / "out", num_epochs=1, loggers=[]).train()
    assert not (tmp_path / "out").exists()


def test_the_log_says_how_many_parameters_train(tiny_model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_epochs": 1, "loggers": "jsonl", "use_lora": True}
    wrapper = SFTTrainerWrapper(str(tiny_model), sft_rows(4), tmp_path / "out", **options)
    wrapper.train()
    assert f'"{describe_parameters(wrapper.model.model)}"' in (tmp_path / "out" / "metrics.jsonl").read_text()
    assert len(checkpoints(tmp_path / "out")) == len(metric_lines(tmp_path / "out")) == 1
