"""Settings that depend on one another: defaults that follow, values that are brought into line, and those that clash.

`settle` works on the values of all keys by their full names, in place. It returns lines for the log; what cannot work
together is a ConfigError that names both.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .keys import KEYS

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
