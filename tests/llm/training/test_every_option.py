"""Every option acts: each field of the config is changed, and something that a user can see changes with it."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen.llm import GRPOTrainerWrapper, SFTTrainerWrapper, TrainingConfig
from tests.llm.internals import checkpoints

from ..tiny_models import write_tiny_model
from .scenes import metric_lines, rl_rows, sft_rows, texts

Look = Callable[[Path, Any], Any]


def weights(folder: Path, run: Any) -> float:
    return float(sum(weight.detach().double().abs().sum() for weight in run.model.model.parameters()))


def steps(folder: Path, run: Any) -> int:
    return int(run.current_iter)


def learning_rates(folder: Path, run: Any) -> list[float]:
    return [line["learning_rate"] for line in metric_lines(folder)]


def logged_steps(folder: Path, run: Any) -> list[int]:
    return [line["step"] for line in metric_lines(folder)]


def validated_steps(folder: Path, run: Any) -> list[int]:
    return [line["step"] for line in metric_lines(folder) if "val/loss" in line]


def saved(folder: Path, run: Any) -> list[str]:
    return [path.name for path in checkpoints(folder)]


def tokens(folder: Path, run: Any) -> float:
    return float(metric_lines(folder)[-1]["num_tokens"])


def completions(folder: Path, run: Any) -> list[str]:
    return list(run.seen)


def files(folder: Path, run: Any) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def is_checkpointing(folder: Path, run: Any) -> bool:
    return bool(run.model.model.is_gradient_checkpointing)


def place(folder: Path, run: Any) -> bool:
    return (folder / "model.safetensors").exists()


def adapter(name: str) -> Look:
    return lambda folder, run: json.loads((folder / "adapter_config.json").read_text())[name]


LORA = {"use_lora": True}
# field: (its value in the first run, its value in the second, what both runs have, what must differ)
OPTIONS: dict[str, tuple[Any, Any, dict[str, Any], Look]] = {
    "model_name": (None, "other", {}, weights),
    "output_dir": (None, "elsewhere", {}, place),
    "num_train_epochs": (1, 2, {}, steps),
    "per_device_train_batch_size": (4, 2, {}, steps),
    "gradient_accumulation_steps": (1, 2, {}, steps),
    "learning_rate": (1e-3, 2e-3, {}, weights),
    "warmup": (0, 2, {}, learning_rates),
    "logging_steps": (1, 2, {}, logged_steps),
    "save_steps": (2, 1, {"save_total_limit": 9}, saved),
    "eval_steps": (1, 2, {"eval_dataset": sft_rows(2)}, validated_steps),
    "max_length": (1024, 24, {}, tokens),
    "max_new_tokens": (4, 6, {"algorithm": "grpo"}, completions),
    "temperature": (1.0, 0.1, {"algorithm": "grpo"}, completions),
    "top_p": (1.0, 0.01, {"algorithm": "grpo"}, completions),
    "precision": ("fp32", "bf16", {}, weights),
    "gradient_checkpointing": (False, True, {}, is_checkpointing),
    "use_lora": (False, True, {}, files),
    "lora_r": (4, 2, LORA, adapter("r")),
    "lora_alpha": (4, 64, LORA, weights),
    "lora_dropout": (0.0, 0.5, LORA, weights),
    "lora_target_modules": ("minimal", "full", LORA, adapter("target_modules")),
    "loggers": (["jsonl"], ["csv"], {}, files),
    "seed": (1, 2, {}, weights),
}


def test_every_field_of_the_config_is_tried() -> None:
    assert {each.name for each in fields(TrainingConfig)} == set(OPTIONS)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("other") / "model", seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_changes_what_it_says(tiny_model: Path, other_model: Path, tmp_path: Path, name: str) -> None:
    first, second, shared, look = OPTIONS[name]
    second = {"other": str(other_model), "elsewhere": str(tmp_path / "elsewhere")}.get(str(second), second)
    runs = [
        _run(tiny_model, tmp_path / folder, {**shared, name: value})
        for folder, value in (("first", first), ("second", second))
    ]
    assert look(tmp_path / "first", runs[0]) != look(tmp_path / "second", runs[1])


def _run(model: Path, folder: Path, options: dict[str, Any]) -> Any:
    usual: dict[str, Any] = {
        "model_name": str(model),
        "output_dir": str(folder),
        "num_train_epochs": 1,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "loggers": ["jsonl"],
    }
    given = {**usual, **{name: value for name, value in options.items() if value is not None}}
    config = TrainingConfig(
        **{each.name: given.pop(each.name) for each in fields(TrainingConfig) if each.name in given}
    )
    if given.pop("algorithm", "sft") == "sft":
        wrapper: Any = SFTTrainerWrapper(dataset=sft_rows(8), config=config, **given)
    else:
        wrapper = _Sampling.run(config)
    wrapper.train()
    return wrapper


class _Sampling:
    """A run of GRPO that keeps what was sampled."""

    @staticmethod
    def run(config: TrainingConfig) -> GRPOTrainerWrapper:
        seen: list[str] = []

        def watching(completions: list[Any], **columns: Any) -> list[float]:
            seen.extend(texts(completions))
            return [float(len(text)) for text in texts(completions)]

        config.max_new_tokens = config.max_new_tokens or 5
        wrapper: Any = GRPOTrainerWrapper(dataset=rl_rows(2), reward_fn=watching, num_generations=4, config=config)
        wrapper.seen = seen
        return wrapper  # type: ignore[no-any-return]


def test_bfloat16_computes_in_less_and_keeps_the_weights_in_float32(tiny_model: Path, tmp_path: Path) -> None:
    run = _run(tiny_model, tmp_path / "out", {"precision": "bf16"})
    assert {weight.dtype for weight in run.model.model.parameters()} == {torch.float32}
    assert run._trainer.args.bf16
