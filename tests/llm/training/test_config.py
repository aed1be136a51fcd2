"""The settings of a run in one object."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError
from sharpen.llm import TrainingConfig
from sharpen.loggers import Logger
from tests.llm.internals import training_limits as limits

FIELDS = [each.name for each in fields(TrainingConfig)]


def test_a_config_says_nothing_until_it_is_told() -> None:
    config = TrainingConfig()
    assert config.set_fields() == {}
    assert all(getattr(config, name) is None for name in FIELDS)


def test_the_config_has_the_fields_of_the_contract() -> None:
    contract = (
        "model_name output_dir num_train_epochs per_device_train_batch_size gradient_accumulation_steps learning_rate "
        "warmup logging_steps save_steps eval_steps max_length max_new_tokens temperature top_p precision "
        "gradient_checkpointing use_lora lora_r lora_alpha lora_dropout lora_target_modules loggers seed"
    )
    assert contract.split() == FIELDS


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_refuses_a_value_that_is_nonsense(name: str) -> None:
    nonsense: dict[str, Any] = {name: object()}
    with pytest.raises(ConfigError, match=f"^{name} is <object"):
        TrainingConfig(**nonsense)


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("model_name", "", "a name on the hub"),
        ("output_dir", "", "a path"),
        ("num_train_epochs", 0, "above 0"),
        ("num_train_epochs", float("nan"), "above 0"),
        ("per_device_train_batch_size", 0, "from 1 on"),
        ("per_device_train_batch_size", 2.0, "a whole number"),
        ("per_device_train_batch_size", True, "a whole number"),
        ("gradient_accumulation_steps", -1, "from 1 on"),
        ("learning_rate", 0, "above 0"),
        ("learning_rate", "2e-5", "a number"),
        ("learning_rate", float("inf"), "a number"),
        ("warmup", -0.1, "share of the run below 1"),
        ("warmup", 1.5, "whole number of steps"),
        ("logging_steps", 0, "from 1 on"),
        ("save_steps", -1, "0: only at the end"),
        ("eval_steps", 0, "from 1 on"),
        ("max_length", -1, "0: no limit"),
        ("max_new_tokens", 0, "from 1 on"),
        ("temperature", -1, "above it"),
        ("top_p", 0, "at most 1"),
        ("top_p", 1.1, "at most 1"),
        ("precision", "fp8", "auto, fp32, bf16, fp16"),
        ("gradient_checkpointing", 1, "True or False"),
        ("use_lora", "yes", "True or False"),
        ("lora_r", 0, "from 1 on"),
        ("lora_alpha", 0, "above 0"),
        ("lora_dropout", 1, "below 1"),
        ("lora_target_modules", [], "names of modules"),
        ("lora_target_modules", ["q_proj", 3], "names of modules"),
        ("loggers", [print], "a list of loggers"),
        ("seed", -1, "from 0 to"),
        ("seed", 2**32, "from 0 to"),
    ],
)
def test_a_value_out_of_its_limits_is_refused_with_what_to_use(name: str, value: object, advice: str) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=advice):
        TrainingConfig(**given)


def test_values_within_their_limits_are_kept_as_they_are() -> None:
    values: dict[str, Any] = {
        "model_name": Path("models/mine"),
        "num_train_epochs": 0.5,
        "warmup": 10,
        "save_steps": 0,
        "max_length": 0,
        "temperature": 0,
        "top_p": 1,
        "lora_alpha": 32.0,
        "lora_target_modules": ("q_proj", "v_proj"),
        "loggers": ["console", Logger()],
        "seed": 2**32 - 1,
    }
    assert TrainingConfig(**values).set_fields() == values


def test_every_field_has_its_limits() -> None:
    assert set(FIELDS) <= set(limits._CHECKS)


def test_fields_are_given_by_name_only() -> None:
    with pytest.raises(TypeError):
        TrainingConfig("a model")  # type: ignore[misc]
