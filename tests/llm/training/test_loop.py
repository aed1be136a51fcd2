"""The loop around a run: validations beside it, and its end before its time."""

from pathlib import Path
from typing import Any

import pytest

from sharpen.callbacks import Callback
from sharpen.files import describe_size, folder_size
from sharpen.llm import SFTTrainerWrapper
from tests.llm.internals import checkpoints

from .scenes import metric_lines, same, sft_rows, weights_of

QUICK: dict[str, Any] = {"num_epochs": 1, "learning_rate": 1e-2, "logging_steps": 1, "loggers": ["jsonl"]}


def test_a_validation_leaves_the_training_as_it_would_have_been(tiny_model: Path, tmp_path: Path) -> None:
    options = {**QUICK, "use_lora": True, "lora_dropout": 0.5}  # Dropout draws from the numbers that all share.
    SFTTrainerWrapper(str(tiny_model), sft_rows(12), tmp_path / "alone", **options).train()
    watched = {**options, "eval_dataset": sft_rows(2), "eval_steps": 2}
    SFTTrainerWrapper(str(tiny_model), sft_rows(12), tmp_path / "watched", **watched).train()
    assert same(weights_of(tmp_path / "alone"), weights_of(tmp_path / "watched"))
    validated = [line["step"] for line in metric_lines(tmp_path / "watched") if "val/loss" in line]
    assert validated == [2, 3]  # the last step always


def test_the_newest_checkpoints_are_kept_and_their_size_is_logged(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sharpen")
    SFTTrainerWrapper(str(tiny_model), sft_rows(12), tmp_path / "out", save_steps=1, **QUICK).train()
    kept = checkpoints(tmp_path / "out")
    assert [path.name for path in kept] == ["checkpoint-2", "checkpoint-3"]
    told = [each.getMessage() for each in caplog.records if str(kept[-1]) in each.getMessage()]
    assert any(describe_size(folder_size(kept[-1])) in each for each in told)


def test_a_run_that_is_stopped_ends_after_its_step_with_a_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    class Stops(Callback):
        def on_iter_end(self, loop: Any, trained: Any) -> None:
            loop.should_stop = loop.current_iter == 2

    result = SFTTrainerWrapper(str(tiny_model), sft_rows(12), tmp_path / "out", callbacks=Stops(), **QUICK).train()
    assert (result["steps"], result["stopped_early"]) == (2, True)
    assert [path.name for path in checkpoints(tmp_path / "out")] == ["checkpoint-2"]
