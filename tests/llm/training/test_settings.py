"""From a config and keywords to the settings of a run: every option acts or is refused."""

import ast
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import sharpen
from sharpen.errors import ConfigError, MissingExtraError
from sharpen.llm import TrainingConfig
from sharpen.loggers import ConsoleLogger, Logger
from tests.errors import raises
from tests.llm.internals import (
    ALGORITHMS,
    OTHER_NAMES,
    REFUSED,
    Algorithm,
    TrainingSettings as Settings,
    resolve,
    setting_names,
    trl_fields,
)


def settings(algorithm: Algorithm = "sft", config: TrainingConfig | None = None, **given: Any) -> Settings:
    flags = {name: given.pop(name) for name in ("has_eval_dataset", "has_eval_reward") if name in given}
    return resolve(algorithm, config, {"model_name": "m", **given}, **flags)


# -- defaults ----------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_documents() -> None:
    sft, grpo, dpo = (settings(each) for each in ALGORITHMS)
    assert (sft.output_dir, grpo.output_dir, dpo.output_dir) == ("./output/sft", "./output/grpo", "./output/dpo")
    assert [each.per_device_train_batch_size for each in (sft, grpo, dpo)] == [4, 2, 2]
    assert [each.learning_rate for each in (sft, grpo, dpo)] == [2e-5, 1e-5, 1e-6]
    assert [each.max_length for each in (sft, grpo, dpo)] == [1024, None, 1024]
    assert (grpo.max_new_tokens, grpo.temperature, grpo.top_p, grpo.num_generations) == (512, 1.0, 1.0, 8)
    for each in (sft, grpo, dpo):
        assert (each.num_train_epochs, each.gradient_accumulation_steps, each.warmup) == (3, 1, 0.1)
        assert (each.logging_steps, each.save_steps, each.eval_steps, each.seed) == (10, 100, None, 42)
        assert (each.precision, each.gradient_checkpointing, each.loggers) == ("auto", None, None)
        assert each.lora is None
        assert not each.use_lora
        assert not each.trust_remote_code


def test_a_model_must_be_named() -> None:
    with raises(ConfigError, "model_name"):
        resolve("sft", TrainingConfig(), {})


# -- names -------------------------------------------------------------------------------------------


def test_the_names_of_the_wrappers_and_of_the_config_mean_the_same() -> None:
    short = settings(num_epochs=2, batch_size=8, warmup_steps=5)
    long = settings(num_train_epochs=2, per_device_train_batch_size=8, warmup=5)
    assert short == long == settings(config=TrainingConfig(num_train_epochs=2, per_device_train_batch_size=8, warmup=5))
    assert settings("grpo", max_completion_length=64) == settings("grpo", max_new_tokens=64)
    assert settings(warmup_ratio=0.2) == settings(warmup=0.2)


def test_two_spellings_may_agree_but_not_differ() -> None:
    assert settings(num_epochs=2, num_train_epochs=2).num_train_epochs == 2
    with raises(ConfigError, "num_epochs", 2, "num_train_epochs", 3):
        settings(num_epochs=2, num_train_epochs=3)


def test_a_keyword_may_repeat_the_config_but_not_contradict_it() -> None:
    config = TrainingConfig(learning_rate=1e-4, num_train_epochs=1)
    assert settings(config=config, learning_rate=1e-4, num_epochs=1).learning_rate == 1e-4
    with raises(ConfigError, 2e-05, "config", "learning_rate=0.0001"):
        settings(config=config, learning_rate=2e-5)
    with raises(ConfigError, "num_epochs", 3, "config", "num_train_epochs=1"):
        settings(config=config, num_epochs=3)


def test_a_config_that_was_changed_to_nonsense_is_refused_when_it_is_used() -> None:
    config = TrainingConfig()
    config.learning_rate = -1.0
    with raises(ConfigError, "learning_rate", -1):
        settings(config=config)
    with raises(ConfigError, "TrainingConfig"):
        resolve("sft", {"seed": 1}, {})  # type: ignore[arg-type]


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with raises(ConfigError, "leaning_rate", "SFT", "learning_rate", "TrainingConfig"):
        settings(leaning_rate=1e-4)
    with raises(ConfigError, "eval_dataset"):
        settings(eval_datset=[])
    with raises(ConfigError, "weight_deckay", "weight_decay"):
        settings(weight_deckay=0.1)
    with raises(ConfigError, "scale_reward", "scale_rewards"):
        settings("grpo", scale_reward=False)
    with pytest.raises(ConfigError) as refused:
        settings(batchsize=4)
    assert "'batch_size'" in str(refused.value)
    assert "auto_find_batch_size" not in str(refused.value)  # which is refused as well
    with raises(ConfigError, "sharpen.llm.TrainingConfig", "trl.GRPOConfig"):
        settings("grpo", zzzzzz=1)


def test_an_option_of_trl_needs_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.llm.internals import config_class

    config_class.cache_clear()
    monkeypatch.setitem(sys.modules, "trl", None)
    assert settings(max_steps=5, use_lora=True).max_steps == 5
    with pytest.raises(MissingExtraError):
        settings(weight_decay=0.1)


def test_a_name_of_another_algorithm_is_refused() -> None:
    with raises(ConfigError, "packing", "SFT", "GRPO"):
        settings("grpo", packing=True)
    with raises(ConfigError, "beta", "DPO", "GRPO", "SFT"):
        settings(beta=0.1)
    with raises(ConfigError, "num_generations", "GRPO"):
        settings(num_generations=4)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_option_that_the_loop_owns_is_refused_with_the_reason(name: str) -> None:
    assert all(name in trl_fields(algorithm) for algorithm in ALGORITHMS)
    with raises(ConfigError, name):
        settings(**{name: True})


def test_few_options_are_refused() -> None:
    assert len(REFUSED) <= 15


def test_every_name_that_is_listed_is_taken() -> None:
    for algorithm in ALGORITHMS:
        names = setting_names(algorithm)
        assert {"num_epochs", "learning_rate", "lora_config", "fp16", "max_steps"} <= set(names)
        assert ("num_generations" in names) == (algorithm == "grpo")
        assert set(OTHER_NAMES) <= set(names)
        assert not set(names) & set(REFUSED)


# -- values ------------------------------------------------------------------------------------------


def test_none_is_not_set_but_for_the_two_that_have_a_use_for_it() -> None:
    assert settings(learning_rate=None, lora_config=None, loggers=None, fp16=None) == settings()
    assert settings(max_length=None).max_length is None
    assert settings(max_length=0).max_length is None
    assert settings(save_steps=None).save_steps == 0


@pytest.mark.parametrize("value", [1, 1.0, -0.5, "0.1"])
def test_a_warmup_ratio_is_a_share(value: object) -> None:
    with raises(ConfigError, "warmup_ratio"):
        settings(warmup_ratio=value)


@pytest.mark.parametrize("value", ["ten", 0, -2])
def test_a_run_has_at_least_one_step(value: object) -> None:
    with raises(ConfigError, "max_steps", value):
        settings(max_steps=value)
    assert settings(max_steps=-1).max_steps is None  # whole epochs, as transformers writes it


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"num_generations": 1}, (2,)),
        ({"temperature": 0}, ("temperature",)),
        ({"max_length": 512, "max_new_tokens": 512}, ("max_length", "max_new_tokens")),
    ],
)
def test_settings_of_grpo_are_checked_together(given: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        settings("grpo", **given)


# -- options without effect --------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
@pytest.mark.parametrize("given", [{"temperature": 0.5}, {"top_p": 0.9, "temperature": 0.5}, {"max_new_tokens": 8}])
def test_sampling_is_set_only_where_something_is_sampled(algorithm: Algorithm, given: dict[str, Any]) -> None:
    with raises(ConfigError, "eval_reward_fn"):
        settings(algorithm, **given)
    ready = settings(algorithm, has_eval_dataset=True, has_eval_reward=True, **given)
    name, value = next(iter(given.items()))
    assert getattr(ready, name) == value


def test_an_evaluation_of_sft_answers_greedily_by_default() -> None:
    ready = settings(has_eval_dataset=True, has_eval_reward=True)
    assert (ready.max_new_tokens, ready.temperature, ready.top_p) == (512, 0.0, 1.0)
    assert settings().temperature is None


def test_settings_without_effect_are_refused() -> None:
    with raises(ConfigError, "eval_dataset"):
        settings(eval_steps=5)
    assert settings(eval_steps=5, has_eval_dataset=True).eval_steps == 5
    with raises(ConfigError, "max_steps"):
        settings(num_epochs=2, max_steps=5)
    with raises(ConfigError, "constant_with_warmup"):
        settings(warmup=0.1, lr_scheduler_type="constant")
    assert settings(lr_scheduler_type="constant").trl == {"lr_scheduler_type": "constant"}


# -- precision ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "precision"),
    [
        ({}, "auto"),
        ({"fp16": True}, "fp16"),
        ({"bf16": True}, "bf16"),
        ({"bf16": True, "fp16": False}, "bf16"),
        ({"bf16": True, "precision": "bf16"}, "bf16"),
        ({"bf16": False}, "fp32"),
        ({"fp16": False}, "fp32"),
        ({"bf16": False, "fp16": False, "precision": "auto"}, "fp32"),
        ({"bf16": False, "precision": "fp16"}, "fp16"),
        ({"precision": "fp32"}, "fp32"),
    ],
)
def test_fp16_and_bf16_are_other_names_of_precision(given: dict[str, Any], precision: str) -> None:
    assert settings(**given).precision == precision


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"fp16": True, "bf16": True}, ("fp16", "bf16")),
        ({"fp16": True, "precision": "bf16"}, ("fp16", "precision")),
        ({"bf16": False, "precision": "bf16"}, ("bf16", "precision")),
        ({"fp16": "yes"}, ("fp16",)),
        ({"fp16": True, "config": TrainingConfig(precision="fp32")}, ("config", "precision='fp32'")),
    ],
)
def test_precisions_that_contradict_each_other_are_refused(given: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        settings(**given)


# -- LoRA --------------------------------------------------------------------------------------------


def test_lora_is_made_of_its_own_settings_or_of_a_config() -> None:
    assert settings(use_lora=True).lora == {
        "r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "target_modules": ["q_proj", "v_proj"],
    }
    assert not settings(use_lora=True).is_lora_given
    ready = settings(use_lora=True, lora_r=4, lora_target_modules="recommended")
    assert isinstance(ready.lora, dict)
    assert (ready.lora["r"], len(ready.lora["target_modules"]), ready.is_lora_given) == (4, 4, True)
    given = settings(use_lora=True, lora_config={"r": 4, "target_modules": "full"})
    assert isinstance(given.lora, dict)
    assert (given.lora["r"], len(given.lora["target_modules"]), given.is_lora_given) == (4, 7, True)


def test_lora_settings_and_lora_config_may_agree_but_not_differ() -> None:
    config = {"r": 4, "target_modules": ["v_proj", "q_proj"]}
    assert settings(use_lora=True, lora_config=config, lora_r=4, lora_target_modules="minimal").use_lora
    with raises(ConfigError, 8, "lora_config", 4):
        settings(use_lora=True, lora_config=config, lora_r=8)


@pytest.mark.parametrize(
    "given",
    [
        {"lora_r": 8},
        {"lora_alpha": 8},
        {"lora_dropout": 0.0},
        {"lora_target_modules": "full"},
        {"lora_config": {"r": 8}},
    ],
)
def test_lora_settings_without_lora_are_refused(given: dict[str, Any]) -> None:
    with raises(ConfigError, "use_lora=True"):
        settings(**given)
    with raises(ConfigError, "use_lora=True"):
        settings(use_lora=False, **given)


def test_a_lora_config_of_another_kind_or_with_unknown_keys_is_refused() -> None:
    with raises(ConfigError, "create_lora_config"):
        settings(use_lora=True, lora_config="r=8")
    with raises(ConfigError, "rank"):
        settings(use_lora=True, lora_config={"rank": 8})


# -- what others do with it --------------------------------------------------------------------------


def test_settings_can_be_written_as_json() -> None:
    class Mine(Logger):
        pass

    ready = settings(
        "grpo",
        model_name=Path("a/model"),
        use_lora=True,
        loggers=["console", Mine(), ConsoleLogger()],
        generation_kwargs={"suppress_tokens": [1, 2]},
        reward_weights=(1.0, 0.5),
    )
    written = ready.as_dict()
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert written["loggers"] == ["console", "Mine", "ConsoleLogger"]
    assert written["model_name"] == "a/model"
    assert written["lora"]["target_modules"] == ["q_proj", "v_proj"]
    assert written["trl"] == {"generation_kwargs": {"suppress_tokens": [1, 2]}, "reward_weights": [1.0, 0.5]}
    assert {each.name for each in fields(Settings)} - set(written) == {"is_lora_given"}


def test_one_logger_is_a_list_of_one() -> None:
    logger = Logger()
    assert settings(loggers=logger).loggers == (logger,)
    assert settings(loggers="console").loggers == ("console",)
    assert settings(loggers=[]).loggers == ()


def test_every_setting_is_read_by_the_code_that_trains() -> None:
    """A field that nobody reads would be an option without effect."""
    folder = Path(sharpen.__file__).parent / "llm" / "training"
    read = {
        node.attr
        for path in folder.glob("*.py")
        if path.name != "settings.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and "settings" in ast.unparse(node.value)
    }
    unread = {each.name for each in fields(Settings)} - read - {"algorithm"}
    assert not unread, f"nobody reads {sorted(unread)}: use it where training happens, or remove it"


def test_settings_are_resolved_without_torch_or_trl() -> None:
    program = (
        "import sys; from sharpen.llm.training.settings import resolve; "
        "resolve('grpo', None, {'model_name': 'm', 'use_lora': True, 'max_steps': 5}); "
        "import sharpen.llm.training.loss_watch; "
        "print([each for each in ('torch', 'transformers', 'trl', 'peft', 'datasets') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
