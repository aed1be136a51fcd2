"""`VERLConfig`: the settings of a run, in verl's shape, resolved and checked. `read_config` makes one.

Fields are named as the keys of verl, without `actor_rollout_ref.`: the key `actor_rollout_ref.actor.optim.lr` is
`config.actor.optim.lr`. Meanings and defaults are in `keys`. Everything that the default of one setting takes from
another is resolved here, so that nobody else asks where a value came from; settings that clash are an error that names
both.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...errors import ConfigError
from ...llm.policy.settings import Aggregation, ImportanceMode, KLKind
from ..serving import Sampling
from .config_input import flatten, nested, read_value, resolve, shown
from .keys import FIXED, KEYS, LEAVES, family, full_name, is_section, nearest_key, why_ignored

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
        "ignored": _describe_ignored(ignored) if ignored else None,
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


def _describe_ignored(ignored: Mapping[str, list[str]]) -> str:
    """One line that lists what does nothing, whole sections by their name."""
    parts = [f"{', '.join(dict.fromkeys(map(family, names)))} ({reason})" for reason, names in ignored.items()]
    number = sum(map(len, ignored.values()))
    start = "1 key of the config has" if number == 1 else f"{number} keys of the config have"
    return f"{start} no effect here: {'; '.join(parts)}"


# -- settings that depend on one another --------------------------------------------------------------


_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_VALIDATION = f"{_ROLLOUT}.val_kwargs"
_NEEDS_GROUPS = ("grpo", "rloo")

Values = dict[str, Any]


def settle(values: Values, given: frozenset[str]) -> list[str]:
    """Bring all values into line; the lines say what a caller should know about them."""
    _settle_weights(values, given, _MODEL)
    _settle_update(values, given, _ACTOR)
    _follow(values, given)
    _settle_weights(values, given, "critic.model")
    _settle_update(values, given, "critic")
    _check_estimator(values)
    _check_engine(values)
    _check_reward_model(values)
    _check_resuming(values, given)
    return [
        *_lower_mini_batches(values, given),
        *_settle_validation(values, given),
        *_doubts_of_sampling(values),
        *_doubts_of_kl(values),
    ]


def _follow(values: Values, given: frozenset[str]) -> None:
    for name, key in KEYS.items():
        if key.same_as is not None and name not in given:
            values[name] = values[key.same_as]


# -- defaults that follow ----------------------------------------------------------------------------


def _settle_weights(values: Values, given: frozenset[str], model: str) -> None:
    """Which weights are trained, and from which adapter they start."""
    adapter, rank = values[f"{_MODEL}.lora_adapter_path"], values[f"{model}.lora_rank"]
    if adapter is not None and model == _MODEL:
        values[f"{model}.path"] = adapter
    path = values[f"{model}.path"]
    has_adapter = path == adapter or _is_adapter(path)
    if f"{model}.trainable" not in given:
        # A critic trains as much as the actor, but for an adapter, which is its own.
        same = values[f"{_MODEL}.trainable"]
        values[f"{model}.trainable"] = "lora" if rank or has_adapter else None if same == "lora" else same
    trainable = values[f"{model}.trainable"]
    if trainable == "lora" and not rank and not has_adapter:
        raise ConfigError(
            f"{model}.trainable is 'lora' and {model}.lora_rank is 0: set the rank, for example to 16, or set "
            f"{_MODEL}.lora_adapter_path to the adapter to start from"
        )
    if trainable not in (None, "lora") and rank:
        raise ConfigError(
            f"{model}.trainable is {trainable!r} and {model}.lora_rank is {rank}, but with an adapter only the adapter "
            "is trained: use 'lora', or the rank 0"
        )


def _is_adapter(path: str) -> bool:
    try:
        return Path(path, "adapter_config.json").is_file()
    except OSError:  # a name that is too long for a file is none
        return False


def _settle_update(values: Values, given: frozenset[str], part: str) -> None:
    """Whoever gives a number of sequences wants it; otherwise tokens are counted, which wastes nothing."""
    counts_tokens = f"{part}.use_dynamic_bsz"
    if counts_tokens in given:
        return
    if f"{part}.ppo_micro_batch_size_per_gpu" in given:
        values[counts_tokens] = False
    elif values[counts_tokens] is None:
        values[counts_tokens] = True


def _settle_validation(values: Values, given: frozenset[str]) -> Iterator[str]:
    temperature, is_sampled = f"{_VALIDATION}.temperature", f"{_VALIDATION}.do_sample"
    if values[is_sampled] is False and values[temperature] > 0:
        if temperature in given:
            yield f"{is_sampled} is False: validation takes the most likely token, and {temperature} has no effect"
        values[temperature] = 0.0
    if values[is_sampled] and not values[temperature]:
        yield f"{is_sampled} is True, but {temperature} is 0: validation takes the most likely token"
    values[is_sampled] = values[temperature] > 0
    if values[f"{_VALIDATION}.n"] > 1 and not values[is_sampled]:
        yield f"{_VALIDATION}.n is {values[f'{_VALIDATION}.n']}, but at temperature 0 all answers are the same"


def _lower_mini_batches(values: Values, given: frozenset[str]) -> Iterator[str]:
    most = values["data.train_batch_size"]
    for name in (f"{_ACTOR}.ppo_mini_batch_size", "critic.ppo_mini_batch_size"):
        if values[name] > most:
            if name in given:
                yield f"{name} is {values[name]}, more than data.train_batch_size; using {most}"
            values[name] = most


# -- clashes -----------------------------------------------------------------------------------------


def _check_estimator(values: Values) -> None:
    estimator, size = values["algorithm.adv_estimator"], values[f"{_ROLLOUT}.n"]
    if estimator in _NEEDS_GROUPS and size < 2:
        raise ConfigError(
            f"{_ROLLOUT}.n is {size}, but algorithm.adv_estimator {estimator!r} compares the rollouts of a task with "
            "one another: use 2 or more, for example 4"
        )


def _check_engine(values: Values) -> None:
    engine, url = values[f"{_ROLLOUT}.name"], values[f"{_ROLLOUT}.base_url"]
    if engine == "openai" and url is None:
        raise ConfigError(f"{_ROLLOUT}.name is 'openai': set {_ROLLOUT}.base_url to the address of its server")
    if engine != "openai" and url is not None:
        raise ConfigError(
            f"{_ROLLOUT}.base_url is {url!r}, which is only for the engine 'openai': set {_ROLLOUT}.name to 'openai'"
        )


def _check_reward_model(values: Values) -> None:
    if values["reward_model.enable"] and values["reward_model.path"] is None:
        raise ConfigError("reward_model.enable is True: set reward_model.path to the model that scores")


def _check_resuming(values: Values, given: frozenset[str]) -> None:
    path, mode = values["trainer.resume_from_path"], values["trainer.resume_mode"]
    if path is not None and "trainer.resume_mode" not in given:
        values["trainer.resume_mode"] = "resume_path"
    elif path is not None and mode != "resume_path":
        raise ConfigError(
            f"trainer.resume_from_path is {path!r} and trainer.resume_mode is {mode!r}: use 'resume_path', or leave "
            "out the path"
        )
    elif path is None and mode == "resume_path":
        raise ConfigError("trainer.resume_mode is 'resume_path': set trainer.resume_from_path to the checkpoint")


# -- doubts ------------------------------------------------------------------------------------------


def _doubts_of_sampling(values: Values) -> Iterator[str]:
    if values[f"{_ROLLOUT}.tensor_model_parallel_size"] > 1 and values[f"{_ROLLOUT}.name"] != "vllm":
        yield f"{_ROLLOUT}.tensor_model_parallel_size applies to vLLM only; other engines use one device"
    if values[f"{_ROLLOUT}.top_p"] < 1 or values[f"{_ROLLOUT}.top_k"] > 0:
        yield (
            f"{_ROLLOUT}.top_p or .top_k excludes tokens from sampling, which training does not know about: the two "
            "policies differ, and an importance correction is applied; 1.0 and -1 keep them equal"
        )
    if values["algorithm.max_staleness"] and values["algorithm.importance_correction"] is False:
        yield "algorithm.max_staleness is above 0 and importance_correction is False: old rollouts count like new ones"


def _doubts_of_kl(values: Values) -> Iterator[str]:
    in_reward, in_loss = values["algorithm.use_kl_in_reward"], values[f"{_ACTOR}.use_kl_loss"]
    if in_reward and in_loss:
        yield f"algorithm.use_kl_in_reward and {_ACTOR}.use_kl_loss are both True: the KL counts twice"
    if in_reward and not values["algorithm.kl_ctrl.kl_coef"]:
        yield "algorithm.use_kl_in_reward is True, but algorithm.kl_ctrl.kl_coef is 0: it has no effect"
    if in_loss and not values[f"{_ACTOR}.kl_loss_coef"]:
        yield f"{_ACTOR}.use_kl_loss is True, but {_ACTOR}.kl_loss_coef is 0: it has no effect"
    if in_loss and values[f"{_ACTOR}.kl_loss_type"] == "k1":
        yield f"{_ACTOR}.kl_loss_type k1 has no effect, since its gradient is 0 on average: use k2 or k3"


# -- how tokens are sampled, as the settings say it ---------------------------------------------------


def training_sampling(config: VERLConfig) -> Sampling:
    rollout = config.rollout
    return Sampling(rollout.temperature, rollout.top_p, config.data.max_response_length, rollout.top_k)


def validation_sampling(config: VERLConfig) -> Sampling:
    values = config.rollout.val_kwargs
    temperature = values.temperature if values.do_sample else 0.0
    return Sampling(temperature, values.top_p, config.data.max_response_length, values.top_k)
