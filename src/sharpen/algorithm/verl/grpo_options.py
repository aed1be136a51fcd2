"""GRPO in plain words, for those who do not know verl: each option sets one key of the config."""

import os
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from .given import flatten, nested
from .keys import KEYS, LEAVES, full_name
from .values import read_value

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


def grpo_config(
    model: str | os.PathLike[str],
    *,
    group_size: int = 8,
    batch_size: int = 8,
    learning_rate: float = 1e-5,
    steps: int | None = None,
    epochs: int = 1,
    lora_rank: int = 0,
    lora_alpha: float | None = None,
    trainable: str | None = None,
    temperature: float = 1.0,
    max_prompt_length: int = 4096,
    max_response_length: int = 512,
    clip: float = 0.2,
    clip_high: float | None = None,
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
    mini_batch_size: int | None = None,
    ppo_epochs: int = 1,
    scale_by_std: bool = True,
    max_staleness: int = 0,
    validate_every: int = -1,
    validate_by: str | None = None,
    save_every: int = -1,
    output_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    precision: str | None = None,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The config of these options, in verl's shape. Keys of `config` count more than the options.

    `batch_size` counts tasks, each of which is tried `group_size` times. The run has `steps` steps, or `epochs` passes
    over the tasks. `validate_by` names a field of the tasks: validation also reports the mean of each of its values. An
    option that is None is left to the default of its key.
    """
    given: dict[str, Any] = {
        "model": model,
        "group_size": group_size,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "steps": steps,
        "epochs": epochs,
        "lora_rank": lora_rank,
        "lora_alpha": lora_alpha,
        "trainable": trainable,
        "temperature": temperature,
        "max_prompt_length": max_prompt_length,
        "max_response_length": max_response_length,
        "clip": clip,
        "clip_high": clip_high,
        "kl_coef": kl_coef,
        "entropy_coef": entropy_coef,
        "mini_batch_size": batch_size if mini_batch_size is None else mini_batch_size,
        "ppo_epochs": ppo_epochs,
        "scale_by_std": scale_by_std,
        "max_staleness": max_staleness,
        "validate_every": validate_every,
        "validate_by": validate_by,
        "save_every": save_every,
        "output_dir": output_dir,
        "seed": seed,
        "precision": precision,
    }
    options = [(name, OPTIONS[name], value) for name, value in given.items()]
    # Read here too, so that a message names the option and not the key behind it.
    chosen = {key: read_value(name, KEYS[key].kind, value) for name, key, value in options if value is not None}
    if chosen[f"{_ROLLOUT}.n"] < 2:
        raise ConfigError(f"group_size is {group_size}, but GRPO compares rollouts within a group: use 2 or more")
    chosen |= {"algorithm.adv_estimator": "grpo", f"{_ACTOR}.use_kl_loss": chosen[f"{_ACTOR}.kl_loss_coef"] > 0}
    return nested(chosen | _given(config))


def _given(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """The keys of a config by their full names, so that each takes the place of an option."""
    flat = flatten(config, leaves=LEAVES)
    return {full_name(name) or name: value for name, value in flat.items() if value is not None or name in KEYS}
