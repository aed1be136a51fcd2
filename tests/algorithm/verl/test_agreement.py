import json
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError
from tests.algorithm.internals import read_config
from tests.errors import raises

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"


def said(config: dict[str, Any]) -> str:
    """What a run with a config warns of."""
    return "\n".join(read_config(config).doubts)


# -- sizes -------------------------------------------------------------------------------------------


def test_a_mini_batch_is_lowered_to_the_batch_and_said_if_it_was_asked_for() -> None:
    assert read_config({"data.train_batch_size": 8}).actor.ppo_mini_batch_size == 8
    assert not said({"data.train_batch_size": 8})
    lines = said({"data.train_batch_size": 8, f"{ACTOR}.ppo_mini_batch_size": 16})
    assert lines.startswith(f"{ACTOR}.ppo_mini_batch_size is 16, more than data.train_batch_size")
    assert lines.endswith(" 8")


def test_whoever_gives_a_number_of_sequences_gets_it() -> None:
    assert read_config().actor.use_dynamic_bsz
    assert not read_config({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2}).actor.use_dynamic_bsz
    both = read_config({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2, f"{ACTOR}.use_dynamic_bsz": True})
    assert both.actor.use_dynamic_bsz
    critic = read_config({"critic.ppo_micro_batch_size_per_gpu": 2})
    assert (critic.actor.use_dynamic_bsz, critic.critic.use_dynamic_bsz) == (True, False)


# -- estimators --------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_estimators_that_compare_need_groups(estimator: str) -> None:
    with raises(ConfigError, f"{ROLLOUT}.n", 1, "algorithm.adv_estimator", estimator):
        read_config({"algorithm.adv_estimator": estimator, f"{ROLLOUT}.n": 1})


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus"])
def test_other_estimators_take_single_rollouts(estimator: str) -> None:
    assert read_config({"algorithm.adv_estimator": estimator, f"{ROLLOUT}.n": 1}).rollout.n == 1


def test_the_critic_is_as_the_actor_where_it_is_not_given() -> None:
    config = read_config(
        {
            "algorithm.adv_estimator": "gae",
            ACTOR: {"optim": {"lr": 3e-5}, "ppo_epochs": 2, "grad_clip": None, "ppo_mini_batch_size": 4},
            MODEL: {"path": "some/model", "lora_rank": 8},
            "critic": {"optim": {"weight_decay": 0.1}},
        }
    )
    critic = config.critic
    assert (critic.optim.lr, critic.optim.weight_decay, critic.ppo_epochs) == (3e-5, 0.1, 2)
    assert (critic.ppo_mini_batch_size, critic.grad_clip) == (4, None)
    assert (critic.model.path, critic.model.lora_rank, critic.model.trainable) == ("some/model", 8, "lora")


def test_the_critic_may_train_other_weights_than_the_actor() -> None:
    full = read_config({MODEL: {"lora_rank": 8}, "critic.model.lora_rank": 0})
    assert (full.model.trainable, full.critic.model.trainable) == ("lora", None)
    top = read_config({f"{MODEL}.trainable": "top:4"})
    assert top.critic.model.trainable == "top:4"
    adapter = read_config({f"{MODEL}.trainable": "top:4", "critic.model.lora_rank": 8})
    assert adapter.critic.model.trainable == "lora"


# -- weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", [{"trainable": "lora"}, {"trainable": "all", "lora_rank": 8}, {"trainable": "top:2", "lora_rank": 8}]
)
def test_what_is_trained_and_the_rank_agree(model: dict[str, Any]) -> None:
    with raises(ConfigError, f"{MODEL}.trainable", f"{MODEL}.lora_rank"):
        read_config({MODEL: model})


def test_a_run_may_start_from_an_adapter(tmp_path: Path) -> None:
    config = read_config({MODEL: {"path": "some/model", "lora_adapter_path": "my/adapter"}})
    assert (config.model.path, config.model.trainable) == ("my/adapter", "lora")
    assert (config.critic.model.path, config.critic.model.trainable) == ("my/adapter", "lora")
    (tmp_path / "adapter_config.json").write_text(json.dumps({}), encoding="utf-8")
    assert read_config({MODEL: {"path": tmp_path}}).model.trainable == "lora"


# -- sampling ----------------------------------------------------------------------------------------


def test_clipping_on_each_side_follows_the_common_one() -> None:
    config = read_config({ACTOR: {"clip_ratio": 0.1, "clip_ratio_high": 0.28}})
    assert (config.actor.clip_ratio_low, config.actor.clip_ratio_high) == (0.1, 0.28)


def test_seeds_follow_the_one_of_the_run() -> None:
    config = read_config({"trainer.seed": 7, f"{ROLLOUT}.seed": 8})
    assert (config.data.seed, config.rollout.seed) == (7, 8)


def test_validation_is_greedy_unless_a_temperature_says_otherwise() -> None:
    assert not read_config().rollout.val_kwargs.do_sample
    assert read_config({f"{ROLLOUT}.val_kwargs.temperature": 0.6}).rollout.val_kwargs.do_sample
    greedy = {"do_sample": False, "temperature": 0.6}
    assert "do_sample is False" in said({f"{ROLLOUT}.val_kwargs": greedy})
    assert read_config({f"{ROLLOUT}.val_kwargs": greedy}).rollout.val_kwargs.temperature == 0.0
    assert "temperature is 0" in said({f"{ROLLOUT}.val_kwargs.do_sample": True})
    assert "val_kwargs.n is 4" in said({f"{ROLLOUT}.val_kwargs.n": 4})


def test_the_engine_openai_goes_with_an_address() -> None:
    assert read_config({ROLLOUT: {"name": "openai", "base_url": "http://h/v1"}}).rollout.base_url == "http://h/v1"
    with pytest.raises(ConfigError):
        read_config({ROLLOUT: {"name": "openai"}})
    with raises(ConfigError, "openai"):
        read_config({ROLLOUT: {"base_url": "http://h/v1"}})


def test_the_engine_hf_is_our_own() -> None:
    assert read_config({f"{ROLLOUT}.name": "hf"}).rollout.name == "sharpen"


# -- the rest ----------------------------------------------------------------------------------------


def test_a_reward_model_has_a_name() -> None:
    with raises(ConfigError, "reward_model.path"):
        read_config({"reward_model.enable": True})
    assert read_config({"reward_model": {"enable": True, "model": {"path": "judge"}}}).reward_model.path == "judge"


def test_the_checkpoint_to_go_on_from_and_the_mode_agree() -> None:
    assert read_config({"trainer.resume_from_path": "step_4"}).trainer.resume_mode == "resume_path"
    with pytest.raises(ConfigError):
        read_config({"trainer.resume_mode": "resume_path"})
    with pytest.raises(ConfigError):
        read_config({"trainer.resume_mode": "disable", "trainer.resume_from_path": "step_4"})


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ({"algorithm.use_kl_in_reward": True, f"{ACTOR}.use_kl_loss": True}, "both True"),
        ({"algorithm": {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0}}}, "kl_ctrl.kl_coef is 0"),
        ({ACTOR: {"use_kl_loss": True, "kl_loss_coef": 0}}, "kl_loss_coef is 0"),
        ({ACTOR: {"use_kl_loss": True, "kl_loss_type": "kl"}}, "kl_loss_type k1"),
        ({f"{ROLLOUT}.top_p": 0.9}, "top_p"),
        ({f"{ROLLOUT}.top_k": 20}, "top_k"),
        ({f"{ROLLOUT}.tensor_model_parallel_size": 2}, "tensor_model_parallel_size"),
        ({"algorithm": {"max_staleness": 1, "importance_correction": False}}, "importance_correction is False"),
    ],
)
def test_a_config_that_works_but_hardly_as_meant_is_said(config: dict[str, Any], value: str) -> None:
    assert value in said(config)
