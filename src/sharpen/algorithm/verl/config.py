"""`VERLConfig`: the settings of a run, in verl's shape, resolved and checked. `read_config` makes one.

Fields are named as the keys of verl, without `actor_rollout_ref.`: the key `actor_rollout_ref.actor.optim.lr` is
`config.actor.optim.lr`. Meanings and defaults are in `keys`. Everything that the default of one setting takes from
another is resolved here, so that nobody else asks where a value came from.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ...errors import ConfigError
from ...llm.policy.loss_settings import Aggregation, ImportanceMode, KLKind
from .agreement import settle
from .foreign_keys import FIXED
from .given import flatten, nested, resolve
from .keys import KEYS, LEAVES, family, full_name, is_section, nearest_key, why_ignored
from .values import read_value, shown

_GROUPED = "actor_rollout_ref."
_GROUP = ("rollout", "actor", "model")

Estimator = Literal["grpo", "gae", "rloo", "reinforce_plus_plus"]
EngineName = Literal["auto", "sharpen", "vllm", "openai"]
Schedule = Literal["constant", "linear", "cosine"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a config."""


class KLControl(_Section, frozen=True):
    kl_coef: float


class AlgorithmConfig(_Section, frozen=True):
    adv_estimator: Estimator
    use_kl_in_reward: bool
    gamma: float
    lam: float
    kl_ctrl: KLControl
    kl_penalty: KLKind
    norm_adv_by_std_in_grpo: bool
    max_staleness: int
    importance_correction: bool | Literal["auto"]
    importance_cap: float
    importance_mode: ImportanceMode


class DataConfig(_Section, frozen=True):
    train_batch_size: int
    max_prompt_length: int
    max_response_length: int
    shuffle: bool
    seed: int
    apply_chat_template_kwargs: dict[str, Any]


class ValidationSampling(_Section, frozen=True):
    n: int
    temperature: float
    top_p: float
    top_k: int
    do_sample: bool


class RolloutConfig(_Section, frozen=True):
    name: EngineName
    base_url: str | None
    n: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    tensor_model_parallel_size: int
    max_num_seqs: int | None
    val_kwargs: ValidationSampling


class OptimConfig(_Section, frozen=True):
    lr: float
    weight_decay: float
    betas: tuple[float, float]
    lr_warmup_steps: int
    lr_warmup_steps_ratio: float
    lr_scheduler: Schedule

    def warmup_steps(self, total_steps: int) -> int:
        """How many of the steps of a run warm up."""
        return self.lr_warmup_steps if self.lr_warmup_steps >= 0 else int(self.lr_warmup_steps_ratio * total_steps)


class _UpdateConfig(_Section, frozen=True):
    """What an actor and a critic have in common."""

    ppo_mini_batch_size: int
    ppo_micro_batch_size_per_gpu: int
    use_dynamic_bsz: bool
    ppo_max_token_len_per_gpu: int
    ppo_epochs: int
    grad_clip: float | None
    loss_agg_mode: Aggregation
    optim: OptimConfig


class ShardingConfig(_Section, frozen=True):
    param_offload: bool
    reshard_after_forward: bool


class ActorConfig(_UpdateConfig, frozen=True):
    strategy: Literal["copies", "fsdp"]
    fsdp_config: ShardingConfig
    clip_ratio: float
    clip_ratio_low: float
    clip_ratio_high: float
    clip_ratio_c: float | None
    use_kl_loss: bool
    kl_loss_coef: float
    kl_loss_type: KLKind
    entropy_coeff: float


class _WeightsConfig(_Section, frozen=True):
    """What the models of an actor and of a critic have in common.

    `trainable` is `all`, `lora` or `top:N`; None trains the adapter if the model turns out to be one, else everything.
    """

    path: str
    use_remove_padding: bool
    enable_gradient_checkpointing: bool
    lora_rank: int
    lora_alpha: float
    target_modules: str | list[str]
    trainable: str | None
    trust_remote_code: bool


class ModelConfig(_WeightsConfig, frozen=True):
    """`path` is the adapter where the run starts from one."""

    lora_adapter_path: str | None
    precision: Literal["auto", "fp32", "bf16"]
    attn_implementation: str | None


class CriticModelConfig(_WeightsConfig, frozen=True):
    pass


class CriticConfig(_UpdateConfig, frozen=True):
    cliprange_value: float | None
    model: CriticModelConfig


class RewardModelConfig(_Section, frozen=True):
    enable: bool
    path: str | None


class TrainerConfig(_Section, frozen=True):
    total_epochs: int
    total_training_steps: int | None
    test_freq: int
    save_freq: int
    val_before_train: bool
    val_group_key: str | None
    val_only: bool
    n_gpus_per_node: int | None
    default_local_dir: str
    max_actor_ckpt_to_keep: int | None
    resume_mode: Literal["auto", "disable", "resume_path"]
    resume_from_path: str | None
    logger: list[str]
    preflight: bool | Literal["strict"]
    stop_when_diverged: bool
    seed: int


class VERLConfig(_Section, frozen=True):
    """The settings of a run."""

    algorithm: AlgorithmConfig
    data: DataConfig
    rollout: RolloutConfig
    actor: ActorConfig
    model: ModelConfig
    critic: CriticConfig
    reward_model: RewardModelConfig
    trainer: TrainerConfig
    given: frozenset[str] = frozenset()
    """Names of the keys that the caller gave."""
    doubts: tuple[str, ...] = ()
    """What the caller should know of the values, a sentence each."""
    ignored: str | None = None
    """One line that lists the keys that do nothing here, with the reasons."""

    def as_dict(self) -> dict[str, Any]:
        """The whole config in verl's shape, as plain JSON values. `read_config` reads the same settings from it."""
        sections = msgspec.json.decode(msgspec.json.encode(self))
        for name in ("given", "doubts", "ignored"):
            del sections[name]
        grouped = {name: sections.pop(name) for name in _GROUP}
        return {**sections, "actor_rollout_ref": grouped}

    def origin(self, name: str) -> Literal["given", "default"]:
        """Whether the caller gave this key, by verl's dotted name."""
        key = full_name(name)
        if key is None:
            raise ConfigError(_unknown(name))
        return "given" if key in self.given else "default"


Config = Mapping[str, Any] | str | os.PathLike[str] | VERLConfig | None


def read_config(config: Config = None) -> VERLConfig:
    """The config of a mapping (nested, dotted, or both) or of a YAML file, over the defaults.

    Keys that mean nothing here are listed in `ignored`, which `VERL` logs when it runs: before that, nobody may have
    set up logging, and there is no run.log. A ConfigError names the key that cannot be used.
    """
    if isinstance(config, VERLConfig):
        return config
    flat = flatten(config, leaves=LEAVES)
    given, ignored = _sort(flat)
    values = {name: given.get(name, key.default) for name, key in KEYS.items()}
    notes = {
        "given": list(given),
        "doubts": settle(values, frozenset(given)),
        "ignored": _in_words(ignored) if ignored else None,
    }
    sections = nested({name.removeprefix(_GROUPED): value for name, value in values.items()})
    return msgspec.convert({**sections, **notes}, VERLConfig)


# -- what was given ----------------------------------------------------------------------------------


def _sort(flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The values of keys that act, by their full names, and the names of those that do not, by the reason."""
    defaults = {name: key.default for name, key in KEYS.items()}
    given: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    ignored: dict[str, list[str]] = {}
    for name, raw in flat.items():
        if (key := full_name(name)) is None:
            _sort_foreign(name, resolve(name, raw, flat, defaults) if name in FIXED else raw, ignored)
            continue
        found = resolve(name, raw, flat, defaults)
        value = None if found is None else read_value(name, KEYS[key].kind, found)
        if value is None and not (KEYS[key].is_optional and name == key):
            continue
        if key in given and given[key] != value:
            raise ConfigError(
                f"{spelled[key]} is {shown(given[key])} and {name} is {shown(value)}, but they are the same setting: "
                f"set only {key}"
            )
        given[key], spelled[key] = value, name
    return given, ignored


def _sort_foreign(name: str, value: Any, ignored: dict[str, list[str]]) -> None:
    fixed = FIXED.get(name)
    if fixed is not None:
        if value is not None and str(value).lower() != str(fixed.value).lower():
            raise ConfigError(f"{name} is {shown(value)}: {fixed.advice}")
    elif (reason := why_ignored(name)) is not None:
        if value is not None:
            ignored.setdefault(reason, []).append(name)
    elif not is_section(name):
        raise ConfigError(_unknown(name))
    elif value is not None:
        raise ConfigError(f"{name} is {shown(value)}: use a mapping, since it has keys below it")


def _unknown(name: str) -> str:
    nearest = nearest_key(name)
    meant = f"did you mean {nearest}?" if nearest else "see docs/reference/verl-keys.md for all keys"
    return f"there is no key {name[:200]!r} in the config: {meant}"


def _in_words(ignored: Mapping[str, list[str]]) -> str:
    """One line that lists what does nothing, whole sections by their name."""
    parts = [f"{', '.join(dict.fromkeys(map(family, names)))} ({reason})" for reason, names in ignored.items()]
    number = sum(map(len, ignored.values()))
    start = "1 key of the config has" if number == 1 else f"{number} keys of the config have"
    return f"{start} no effect here: {'; '.join(parts)}"
