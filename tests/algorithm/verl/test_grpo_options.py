import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharpen import GRPO, VERL
from sharpen.errors import ConfigError
from tests.algorithm.internals import OPTIONS, SYNONYMS
from tests.errors import raises

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"


def test_the_model_alone_makes_a_config() -> None:
    config = GRPO("some/model").settings
    assert config.model.path == "some/model"
    assert config.algorithm.adv_estimator == "grpo"
    assert (config.rollout.n, config.data.train_batch_size, config.actor.ppo_mini_batch_size) == (8, 8, 8)
    assert config.actor.optim.lr == 1e-5
    assert not config.actor.use_kl_loss
    assert config.origin("trainer.default_local_dir") == "default"


def test_every_option_acts(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "group_size": 4,
        "batch_size": 6,
        "learning_rate": 1e-4,
        "steps": 20,
        "epochs": 3,
        "lora_rank": 8,
        "lora_alpha": 32,
        "trainable": "lora",
        "temperature": 0.8,
        "max_prompt_length": 100,
        "max_response_length": 16,
        "clip": 0.1,
        "clip_high": 0.28,
        "kl_coef": 0.01,
        "entropy_coef": 0.02,
        "mini_batch_size": 3,
        "ppo_epochs": 2,
        "scale_by_std": False,
        "max_staleness": 1,
        "validate_every": 5,
        "validate_by": "kind",
        "save_every": 10,
        "output_dir": tmp_path,
        "seed": 3,
        "precision": "bf16",
        "config": {"data.shuffle": False},
    }
    assert set(given) | {"model", "others", "unknown"} == set(inspect.signature(GRPO).parameters)
    assert set(given) | {"model"} == {*OPTIONS, "config"}
    usual = GRPO("m").config
    for name, value in given.items():
        alone = {name: value, **({"lora_rank": 8} if name == "trainable" else {})}
        assert GRPO("m", **alone).config != usual, name
    config = GRPO("m", **given).settings
    assert config.actor.use_kl_loss
    assert config.actor.kl_loss_coef == 0.01
    assert (config.actor.clip_ratio_low, config.actor.clip_ratio_high) == (0.1, 0.28)
    assert config.trainer.default_local_dir == str(tmp_path)
    assert (config.model.trainable, config.model.lora_alpha, config.model.precision) == ("lora", 32.0, "bf16")
    assert (config.trainer.test_freq, config.trainer.save_freq, config.trainer.total_training_steps) == (5, 10, 20)
    assert config.trainer.val_group_key == "kind"
    assert not config.data.shuffle


def test_keys_of_verl_count_more_than_the_options() -> None:
    keys = {"data": {"train_batch_size": 16}, f"{ROLLOUT}.response_length": 32}
    data = GRPO("m", batch_size=4, config=keys).settings.data
    assert (data.train_batch_size, data.max_response_length) == (16, 32)


def test_an_empty_section_takes_nothing_away() -> None:
    assert GRPO("m", config={"data": None, "trainer": {}}).config == GRPO("m").config


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"group_size": 1}, ("group_size", 1)),
        ({"batch_size": 0}, ("batch_size", 0)),
        ({"learning_rate": -1}, ("learning_rate", -1)),
        ({"temperature": 0}, ("temperature", 0)),
        ({"precision": "fp8"}, ("precision", "fp8")),
        ({"trainable": "half"}, ("trainable", "half")),
        ({"config": {"data.train_batch_size.x": 1}}, ("data.train_batch_size.x",)),
    ],
)
def test_a_wrong_option_is_named_as_the_caller_wrote_it(options: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        GRPO("m", **options)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_generations", "group_size="),
        ("lr", "learning_rate="),
        ("beta", "kl_coef="),
        ("max_completion_length", "max_response_length="),
        ("groupsize", "group_size="),
        ("learning_rat", "learning_rate="),
        ("preflight", "'trainer.preflight'"),
        ("qqq", "group_size"),
    ],
)
def test_a_near_miss_is_told_the_option_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GRPO("m", **{name: 1})
    assert name in str(caught.value)
    assert meant in str(caught.value)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: GRPO(), ("GRPO(",)),
        (lambda: GRPO(None), ("GRPO(",)),
        (lambda: GRPO(model_name="q"), ("model_name", "model=")),  # type: ignore[arg-type]
        (lambda: GRPO("m", 8), (8, "group_size=")),  # type: ignore[arg-type]
        (lambda: GRPO(5), (5,)),  # type: ignore[arg-type]
        (lambda: VERL(model="x"), ("model", "GRPO")),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_call_is_told_what_to_write(make: Callable[[], Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        make()


def test_synonyms_lead_to_options_and_are_none_themselves() -> None:
    assert set(SYNONYMS.values()) <= set(OPTIONS)
    assert not set(SYNONYMS) & set(OPTIONS)


def test_an_unknown_key_is_found_when_the_config_is_read() -> None:
    with raises(ConfigError, "data.shuffle"):
        GRPO("m", config={"data.shufle": True})
