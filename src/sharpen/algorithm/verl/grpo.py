"""`GRPO`: the same training for those who do not know verl. Each option sets one key of the config."""

import os
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Never

from ...errors import ConfigError
from ...types import TaskT
from .config_input import flatten, nested, read_value, shown
from .keys import KEYS, LEAVES, full_name
from .verl import VERL


class GRPO(VERL[TaskT]):
    """Train the model behind an agent from the agent's own rollouts.

    Each task is tried `group_size` times. Answers that score above the mean of their group become more likely, the
    others less. Run it with `Trainer(algorithm=GRPO(model)).fit(agent, train_tasks, val_tasks)`.

    Args:
        model: A name on the Hugging Face hub, a folder, an adapter or a GGUF file. Required.
        group_size: Number of rollouts of each task.
        batch_size: Number of tasks in a step.
        learning_rate: Learning rate of AdamW. LoRA needs about ten times the rate of full training.
        steps: Number of steps. None runs `epochs` passes over the tasks.
        epochs: Number of passes over the tasks if `steps` is None.
        lora_rank: Rank of the LoRA adapter to train. 0 trains the weights themselves.
        lora_alpha: Scale of the adapter.
        trainable: The weights to train: `all`, `lora` or `top:N` (the last N layers).
        temperature: Sampling temperature in training.
        max_prompt_length: Maximum number of prompt tokens. Calls with a longer prompt are excluded from training.
        max_response_length: Maximum number of tokens in an answer. A step waits for its longest rollout.
        clip: How far from 1 the ratio of the new to the old policy may be.
        clip_high: The same above 1. None uses `clip`.
        kl_coef: Weight in the loss of the KL divergence from the model at the start of the run.
        entropy_coef: Weight of the entropy in the loss.
        mini_batch_size: Number of tasks in an update. None uses `batch_size`.
        ppo_epochs: Number of passes over the rollouts of a step.
        scale_by_std: Whether to divide advantages by the standard deviation of the group.
        max_staleness: By how many steps the weights of a rollout may be out of date. 0 trains in lockstep.
        validate_every: Number of steps between validations. -1 validates only before the first and after the last step.
        validate_by: A field of the tasks. Validation also reports the mean reward for each of its values.
        save_every: Number of steps between saved checkpoints. -1 saves only the last.
        output_dir: The folder of the checkpoints. None uses the run folder.
        seed: Seed of everything that has no separate seed.
        precision: `fp32` or `bf16`. None depends on the device.
        config: Further settings with verl's keys, which override the options above.

    Raises:
        ConfigError: An option is unknown or has a value that is not allowed. The message names the nearest option.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *others: Never,
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
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown, others)
        given = locals()
        super().__init__(grpo_config({name: given[name] for name in OPTIONS}, config))

    def spelled(self, key: str) -> str:
        return next((f"{option}=" for option, own in OPTIONS.items() if own == key), super().spelled(key))


# -- options, each of which sets one key of the config ------------------------------------------------


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
