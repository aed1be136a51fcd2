"""The settings of a run in one object."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError
from sharpen.llm import TrainingConfig
from sharpen.loggers import Logger
from tests.errors import raises
from tests.llm.internals import training_config

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
    with raises(ConfigError, name):
        TrainingConfig(**nonsense)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("model_name", "", ()),
        ("output_dir", "", ()),
        ("num_train_epochs", 0, (0,)),
        ("num_train_epochs", float("nan"), (0,)),
        ("per_device_train_batch_size", 0, (1,)),
        ("per_device_train_batch_size", 2.0, ()),
        ("per_device_train_batch_size", True, ()),
        ("gradient_accumulation_steps", -1, (1,)),
        ("learning_rate", 0, (0,)),
        ("learning_rate", "2e-5", ()),
        ("learning_rate", float("inf"), ()),
        ("warmup", -0.1, (1,)),
        ("warmup", 1.5, ()),
        ("logging_steps", 0, (1,)),
        ("save_steps", -1, (0,)),
        ("eval_steps", 0, (1,)),
        ("max_length", -1, (0,)),
        ("max_new_tokens", 0, (1,)),
        ("temperature", -1, ()),
        ("top_p", 0, (1,)),
        ("top_p", 1.1, (1,)),
        ("precision", "fp8", ("fp32", "bf16", "fp16")),
        ("gradient_checkpointing", 1, ()),
        ("use_lora", "yes", ()),
        ("lora_r", 0, (1,)),
        ("lora_alpha", 0, (0,)),
        ("lora_dropout", 1, (1,)),
        ("lora_target_modules", [], ()),
        ("lora_target_modules", ["q_proj", 3], ()),
        ("loggers", [print], ()),
        ("seed", -1, (0,)),
        ("seed", 2**32, (0,)),
    ],
)
def test_a_value_out_of_its_limits_is_refused_with_what_to_use(
    name: str, value: object, named: tuple[object, ...]
) -> None:
    given: dict[str, Any] = {name: value}
    with raises(ConfigError, name, *named):
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
    assert set(FIELDS) <= set(training_config._CHECKS)


def test_fields_are_given_by_name_only() -> None:
    with pytest.raises(TypeError):
        TrainingConfig("a model")  # type: ignore[misc]
