"""GRPO in plain words, for those who do not know verl: each option sets one key of the config."""

import os
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ...errors import ConfigError
from .given import flatten, nested
from .keys import KEYS, LEAVES, full_name
from .values import read_value, shown

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"

OPTIONS = {
    "model": f"{_MODEL}.path",
    "group_size": f"{_ROLLOUT}.n",
    "batch_size": "data.train_batch_size",
    "learning_rate": f"{_ACTOR}.optim.lr",
    "steps": "trainer.total_training_steps",
    "epochs": "trainer.total_epochs",
    "lora_rank": f"{_MODEL}.lora_rank",
    "lora_alpha": f"{_MODEL}.lora_alpha",
    "trainable": f"{_MODEL}.trainable",
    "temperature": f"{_ROLLOUT}.temperature",
    "max_prompt_length": "data.max_prompt_length",
    "max_response_length": "data.max_response_length",
    "clip": f"{_ACTOR}.clip_ratio",
    "clip_high": f"{_ACTOR}.clip_ratio_high",
    "kl_coef": f"{_ACTOR}.kl_loss_coef",
    "entropy_coef": f"{_ACTOR}.entropy_coeff",
    "mini_batch_size": f"{_ACTOR}.ppo_mini_batch_size",
    "ppo_epochs": f"{_ACTOR}.ppo_epochs",
    "scale_by_std": "algorithm.norm_adv_by_std_in_grpo",
    "max_staleness": "algorithm.max_staleness",
    "validate_every": "trainer.test_freq",
    "validate_by": "trainer.val_group_key",
    "save_every": "trainer.save_freq",
    "output_dir": "trainer.default_local_dir",
    "seed": "trainer.seed",
    "precision": f"{_MODEL}.precision",
}
"""The key that each option sets."""


SYNONYMS = {
    **dict.fromkeys(("num_generations", "n", "num_samples", "rollouts"), "group_size"),
    **dict.fromkeys(("lr", "actor_lr"), "learning_rate"),
    **dict.fromkeys(("beta", "kl_loss_coef", "kl"), "kl_coef"),
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size", "generation_batch_size"), "batch_size"),
    **dict.fromkeys(("max_completion_length", "max_new_tokens", "max_tokens"), "max_response_length"),
    **dict.fromkeys(("max_steps", "total_training_steps", "num_steps"), "steps"),
    **dict.fromkeys(("num_train_epochs", "num_epochs", "total_epochs", "n_epochs"), "epochs"),
    **dict.fromkeys(("epsilon", "clip_ratio", "cliprange"), "clip"),
    **dict.fromkeys(("epsilon_high", "clip_ratio_high"), "clip_high"),
    **dict.fromkeys(("eval_steps", "test_freq", "eval_every"), "validate_every"),
    **dict.fromkeys(("save_steps", "save_freq", "checkpoint_every"), "save_every"),
    **dict.fromkeys(("num_iterations", "mu"), "ppo_epochs"),
    **dict.fromkeys(("rank", "lora_r", "r"), "lora_rank"),
    **dict.fromkeys(("model_name", "model_path", "model_name_or_path", "path"), "model"),
    **{"scale_rewards": "scale_by_std", "entropy_coeff": "entropy_coef", "dtype": "precision", "bf16": "precision"},
    **{"prompt_length": "max_prompt_length", "default_local_dir": "output_dir", "val_group_key": "validate_by"},
}
"""What TRL, verl and others call an option."""


def refuse_unknown(names: Iterable[str], unnamed: Sequence[Any] = ()) -> None:
    """Raise a ConfigError that says what each of these options is called here, and that options need their names."""
    if unnamed:
        raise ConfigError(
            f"GRPO takes only the model as a positional argument, but got {', '.join(map(shown, unnamed))}: pass "
            "options by name, such as GRPO(model, group_size=8)"
        )
    told = [f"{name} ({_hint(name)})" for name in names]
    if told:
        raise ConfigError(f"GRPO does not accept {', '.join(told)}")


def _hint(name: str) -> str:
    if name in SYNONYMS:
        return f"use {SYNONYMS[name]}="
    if (key := next((each for each in KEYS if each.rpartition(".")[2] == name), None)) is not None:
        return f"this is a key of the config: use config={{{key!r}: ...}}"
    known = {**{option: option for option in (*OPTIONS, "config")}, **SYNONYMS}
    if near := get_close_matches(name, known, 1, cutoff=0.7):
        return f"did you mean {known[near[0]]}=?"
    return f"the options are {', '.join(OPTIONS)} and config, whose keys are in docs/reference/verl-keys.md"


def grpo_config(
    options: Mapping[str, Any], config: Mapping[str, Any] | str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """The config of the options of `GRPO`, in verl's shape. Keys of `config` count more than the options."""
    given = dict(options)
    if given["model"] is None:
        raise ConfigError(
            "GRPO needs the model to train: pass its name, as in GRPO('Qwen/Qwen2.5-0.5B-Instruct'), or a folder"
        )
    if given["mini_batch_size"] is None:
        given["mini_batch_size"] = given["batch_size"]
    # Read here too, so that a message names the option and not the key behind it.
    chosen = {
        OPTIONS[name]: read_value(name, KEYS[OPTIONS[name]].kind, value)
        for name, value in given.items()
        if value is not None
    }
    if chosen[f"{_ROLLOUT}.n"] < 2:
        size = given["group_size"]
        raise ConfigError(f"group_size is {size}, but GRPO compares rollouts within a group: use 2 or more")
    chosen |= {"algorithm.adv_estimator": "grpo", f"{_ACTOR}.use_kl_loss": chosen[f"{_ACTOR}.kl_loss_coef"] > 0}
    return nested(chosen | _given(config))


def _given(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """The keys of a config by their full names, so that each takes the place of an option."""
    flat = flatten(config, leaves=LEAVES)
    return {full_name(name) or name: value for name, value in flat.items() if value is not None or name in KEYS}
