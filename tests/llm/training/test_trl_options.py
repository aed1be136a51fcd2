"""The settings in TRL's words, held against the TRL that is installed."""

import dataclasses
import logging
from typing import Any

import pytest
import torch

from sharpen.errors import ConfigError
from sharpen.llm import TrainingConfig
from tests.errors import raises
from tests.llm.internals import (
    ALGORITHMS,
    Algorithm,
    TrainingSettings as Settings,
    check_length,
    flash_attention,
    is_padding_free,
    resolve,
    run_length,
    trl_config,
)

torch.set_num_threads(1)

OUTPUT = {"model_name": "m"}


def settings(algorithm: Algorithm = "sft", **given: Any) -> Settings:
    return resolve(algorithm, None, OUTPUT | given, has_eval_dataset=True)


def config_of(ready: Settings, *, num_rows: int = 64, precision: str = "fp32") -> Any:
    check_length(ready, num_rows)
    return trl_config(ready, device="cpu", precision=precision)


def in_trl(algorithm: Algorithm, **given: Any) -> dict[str, Any]:
    made: dict[str, Any] = config_of(settings(algorithm, **given)).to_dict()
    return made


# -- every setting acts ------------------------------------------------------------------------------

# For each field of TrainingConfig: an algorithm, a value, and what in TRL's config follows from it. Where None stands,
# the wrapper itself reads the setting, under the name of the last column.
ACTS: dict[str, tuple[Algorithm, Any, str | None, Any]] = {
    "model_name": ("sft", "another", None, "model_name"),
    "output_dir": ("sft", "./elsewhere", "output_dir", "./elsewhere"),
    "num_train_epochs": ("sft", 7, "num_train_epochs", 7),
    "per_device_train_batch_size": ("grpo", 3, "per_device_train_batch_size", 24),
    "gradient_accumulation_steps": ("sft", 5, "gradient_accumulation_steps", 5),
    "learning_rate": ("sft", 3e-4, "learning_rate", 3e-4),
    "warmup": ("sft", 0.25, "warmup_steps", 0.25),
    "logging_steps": ("sft", 3, "logging_steps", 3),
    "save_steps": ("sft", 7, None, "save_steps"),
    "eval_steps": ("sft", 7, None, "eval_steps"),
    "max_length": ("sft", 99, "max_length", 99),
    "max_new_tokens": ("grpo", 33, "max_completion_length", 33),
    "temperature": ("grpo", 0.7, "temperature", 0.7),
    "top_p": ("grpo", 0.8, "top_p", 0.8),
    "precision": ("sft", "bf16", None, "precision"),
    "gradient_checkpointing": ("sft", True, "gradient_checkpointing", True),
    "use_lora": ("sft", True, None, "lora"),
    "lora_r": ("sft", 3, None, "lora"),
    "lora_alpha": ("sft", 3, None, "lora"),
    "lora_dropout": ("sft", 0.3, None, "lora"),
    "lora_target_modules": ("sft", "full", None, "lora"),
    "loggers": ("sft", ["csv"], None, "loggers"),
    "seed": ("sft", 7, "seed", 7),
}


@pytest.mark.parametrize("name", [each.name for each in dataclasses.fields(TrainingConfig)])
def test_every_field_of_the_config_changes_something(name: str) -> None:
    assert name in ACTS, f"say in ACTS what {name} changes: a field without effect is not allowed"
    algorithm, value, option, expected = ACTS[name]
    around: dict[str, Any] = {"use_lora": True} if name.startswith("lora_") else {}
    before, after = settings(algorithm, **around), settings(algorithm, **around | {name: value})
    if option is None:
        assert getattr(after, expected) != getattr(before, expected)
    else:
        assert config_of(after).to_dict()[option] == expected != config_of(before).to_dict()[option]


def test_further_options_of_trl_pass_through_by_name() -> None:
    sft = in_trl("sft", max_steps=5, lr_scheduler_type="cosine", weight_decay=0.1, packing=True, loss_type="dft")
    assert (sft["max_steps"], sft["lr_scheduler_type"], sft["weight_decay"]) == (5, "cosine", 0.1)
    assert (sft["packing"], sft["loss_type"]) == (True, "dft")
    grpo = in_trl("grpo", beta=0.04, num_iterations=2, steps_per_generation=4, scale_rewards=False, loss_type="dr_grpo")
    assert (grpo["beta"], grpo["num_iterations"], grpo["steps_per_generation"]) == (0.04, 2, 4)
    assert (grpo["scale_rewards"], grpo["loss_type"]) == ("none", "dr_grpo")
    dpo = in_trl("dpo", beta=0.3, loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.2], per_device_eval_batch_size=3)
    assert (dpo["beta"], dpo["loss_type"], dpo["loss_weights"]) == (0.3, ["sigmoid", "sft"], [1.0, 0.2])
    assert dpo["per_device_eval_batch_size"] == 3


# -- what is always so -------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_saving_evaluating_and_reporting_stay_with_the_wrapper(algorithm: Algorithm) -> None:
    made = config_of(settings(algorithm))
    assert made.save_strategy == "no"
    assert made.eval_strategy == "no"
    assert made.report_to == []
    assert made.disable_tqdm
    assert not made.logging_nan_inf_filter
    assert not made.push_to_hub
    assert not made.trust_remote_code
    assert not made.dataloader_pin_memory
    assert made.use_cpu


@pytest.mark.parametrize(("precision", "flags"), [("fp32", (False, False)), ("bf16", (True, False))])
def test_the_precision_is_the_one_that_was_chosen(
    precision: str, flags: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    made = config_of(settings(), precision=precision)
    assert (made.bf16, made.fp16) == flags
    assert made.mixed_precision == ("no" if precision == "fp32" else precision)


def test_gradient_checkpointing_is_off_on_a_cpu_until_it_is_asked_for() -> None:
    assert not config_of(settings()).gradient_checkpointing
    assert config_of(settings(gradient_checkpointing=True)).gradient_checkpointing
    assert flash_attention("cpu", "bf16") is None


@pytest.mark.parametrize(
    ("given", "longest_row", "expected"),
    [
        ({}, 1024, True),
        ({}, 1025, False),
        ({"max_length": None}, 9999, True),
        ({"packing": True}, 10, False),
        ({"padding_free": False}, 10, False),
    ],
)
def test_batches_are_laid_end_to_end_where_no_row_is_cut(
    given: dict[str, Any], longest_row: int, expected: bool
) -> None:
    assert is_padding_free(settings(**given), longest_row) is expected
    assert not is_padding_free(settings("grpo"), longest_row)


def test_groups_of_grpo_stay_whole_whatever_the_batch_size() -> None:
    for batch, generations in ((1, 2), (2, 8), (3, 5), (7, 3)):
        made = config_of(settings("grpo", batch_size=batch, num_generations=generations))
        assert made.per_device_train_batch_size == batch * generations
        assert made.generation_batch_size == batch * generations
        assert not made.remove_unused_columns


@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (0.1, 10), (1, 1), (12, 12)])
def test_warmup_is_a_share_of_the_run_or_a_number_of_steps(warmup: float, steps: int) -> None:
    assert config_of(settings(warmup=warmup)).get_warmup_steps(100) == steps


def test_a_warmup_longer_than_the_run_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config_of(settings(warmup=100, max_steps=10))
    (warning,) = caplog.records
    assert isinstance(warning.args, tuple)
    assert warning.args[:2] == (100, 10)
    caplog.clear()
    config_of(settings(warmup=0.5, max_steps=1))
    assert not caplog.text


def test_what_trl_refuses_is_a_config_error() -> None:
    with raises(ConfigError, "TRL", "SchedulerType"):
        in_trl("sft", lr_scheduler_type="sinus")
    with raises(ConfigError, "TRL"):
        in_trl("grpo", generation_batch_size=17)
    with pytest.raises(ConfigError):
        in_trl("sft", tf32=True)
    for name in ("use_transformers_continuous_batching", "use_transformers_paged"):
        with raises(ConfigError, "use_transformers_continuous_batching", "cpu"):
            in_trl("grpo", **{name: True})
    with raises(ConfigError, "chat_template_path", "somebody/elses-model"):  # TRL would fetch it
        in_trl("sft", chat_template_path="somebody/elses-model")
    with raises(ConfigError, "warmth"):
        in_trl("grpo", generation_kwargs={"warmth": 1})
    with raises(ConfigError, "steps_per_generation", "generation_batch_size"):
        in_trl("grpo", steps_per_generation=2, generation_batch_size=32)
    with raises(ConfigError, "loss_weights"):
        in_trl("dpo", loss_type=["sigmoid", "sft"], loss_weights=[1.0])


# -- the length of a run -----------------------------------------------------------------------------


def test_a_data_set_that_is_too_small_for_one_batch_is_refused() -> None:
    with raises(ConfigError, 3, 4):
        config_of(settings("grpo", batch_size=2, gradient_accumulation_steps=2), num_rows=3)
    with raises(ConfigError, 3, 4):
        config_of(settings("sft", dataloader_drop_last=True), num_rows=3)
    with raises(ConfigError, 0):
        config_of(settings("dpo"), num_rows=0)
    assert config_of(settings("sft"), num_rows=3).per_device_train_batch_size == 4


@pytest.mark.parametrize(
    ("algorithm", "given", "num_rows", "steps"),
    [
        ("sft", {"num_epochs": 3}, 10, 9),
        ("sft", {"num_epochs": 0.5}, 64, 8),
        ("sft", {"num_epochs": 1, "gradient_accumulation_steps": 2}, 20, 3),
        ("sft", {"num_epochs": 1, "dataloader_drop_last": True}, 10, 2),
        ("sft", {"max_steps": 5}, 8, 5),
        ("grpo", {"num_epochs": 1}, 9, 4),
        ("grpo", {"num_epochs": 1, "num_iterations": 2}, 8, 8),
        ("grpo", {"num_epochs": 1, "gradient_accumulation_steps": 2}, 8, 2),
        ("grpo", {"num_epochs": 2, "steps_per_generation": 4}, 16, 16),
        ("grpo", {"num_epochs": 1, "generation_batch_size": 32}, 8, 4),
        ("dpo", {"num_epochs": 1}, 7, 4),
    ],
)
def test_the_steps_of_a_run_are_counted_before_it(
    algorithm: Algorithm, given: dict[str, Any], num_rows: int, steps: int
) -> None:
    assert run_length(settings(algorithm, **given), num_rows).steps == steps
