"""DPO on a tiny model."""

from pathlib import Path

import pytest

from sharpen.llm import DPOTrainerWrapper, RowError
from tests.errors import raises

from .scenes import dpo_rows, metric_lines, same, weights_of


@pytest.mark.parametrize("use_lora", [False, True])
def test_the_chosen_answer_becomes_likelier(tiny_model: Path, tmp_path: Path, use_lora: bool) -> None:
    DPOTrainerWrapper(
        str(tiny_model),
        dpo_rows(),
        tmp_path / "out",
        num_epochs=3,
        learning_rate=5e-3,
        use_lora=use_lora,
        logging_steps=1,
        eval_dataset=dpo_rows(4),
        loggers="jsonl",
    ).train()
    lines = metric_lines(tmp_path / "out")
    # It begins at its own reference: no margin, and a loss of log 2.
    assert lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert lines[-1]["rewards/margins"] > 0.1
    assert lines[-1]["rewards/accuracies"] == 1.0
    validations = [line["val/loss"] for line in lines if "val/loss" in line]
    assert validations[-1] < validations[0] < 0.6931
    assert not same(weights_of(tiny_model), weights_of(tmp_path / "out"))


def test_a_row_without_a_rejected_answer_is_named(tiny_model: Path) -> None:
    rows = dpo_rows(2)
    rows[1]["rejected"] = None
    with raises(RowError, 1, "rejected"):
        DPOTrainerWrapper(str(tiny_model), rows)
