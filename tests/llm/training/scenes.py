"""Rows, rewards and looks into folders that the tests of training share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sharpen.callbacks import Callback
from sharpen.files import read_json_lines
from sharpen.llm import load_model


def sft_rows(count: int = 16) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
            "completion": [{"role": "assistant", "content": f"#### {number + 1}"}],
        }
        for number in range(count)
    ]


def rl_rows(count: int = 8) -> list[dict[str, Any]]:
    return [
        {"prompt": [{"role": "user", "content": f"What is {number} + 1?"}], "ground_truth": str(number + 1)}
        for number in range(count)
    ]


def dpo_rows(count: int = 8) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
            "chosen": [{"role": "assistant", "content": f"#### {number + 1}"}],
            "rejected": [{"role": "assistant", "content": "I do not know"}],
        }
        for number in range(count)
    ]


def texts(completions: Sequence[Any]) -> list[str]:
    return [each if isinstance(each, str) else each[0]["content"] for each in completions]


def share_of_e(completions: Sequence[Any], **columns: Any) -> list[float]:
    """A reward that any model can learn: the share of the letter e."""
    return [text.count("e") / max(len(text), 1) for text in texts(completions)]


def weights_of(folder: Path | str, **options: Any) -> dict[str, torch.Tensor]:
    """All weights of a saved model, the adapter's too."""
    return {name: weight.detach() for name, weight in load_model(folder, **options).model.named_parameters()}


def logits_of(folder: Path | str, text: str = "What is 1 + 1?") -> torch.Tensor:
    loaded = load_model(folder)
    with torch.no_grad():
        return loaded.model(**loaded.tokenizer(text, return_tensors="pt")).logits


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def metric_lines(folder: Path | str) -> list[dict[str, Any]]:
    """The logged metrics of a run, without what tells of the clock."""
    lines = [line for line in read_json_lines(Path(folder) / "metrics.jsonl") if "epoch" in line or "val/loss" in line]
    return [{name: value for name, value in line.items() if name not in ("time", "step_time")} for line in lines]


class StopAt(Callback):
    """Breaks a run off at a step, as Ctrl-C would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        if loop.current_iter == self.step:
            raise KeyboardInterrupt
