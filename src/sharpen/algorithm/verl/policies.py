"""The policy and the critic of a run, as the settings want them."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch

from ...llm.policy.critic import LocalCritic
from ...llm.policy.local_policy import LocalPolicy
from ...llm.policy.local_settings import LocalOptions
from ...llm.policy.ranks.ranked_policy import RankedPolicy
from ...llm.policy.ranks.sharded_policy import ShardedPolicy
from ...llm.policy.ranks.sharding import Sharding
from .config import ActorConfig, CriticConfig, CriticModelConfig, ModelConfig, VERLConfig

log = logging.getLogger(__name__)


def make_policy(config: VERLConfig, *, total_steps: int, devices: Sequence[str] | None = None) -> LocalPolicy:
    """On `devices`; None: on as many GPUs as the settings say."""
    model, rollout = config.model, config.rollout
    engine = {"max_batch": rollout.max_num_seqs, "seed": rollout.seed}
    options: LocalOptions = {
        "trainable": model.trainable,
        "lora_rank": model.lora_rank,
        "lora_alpha": model.lora_alpha,
        "target_modules": model.target_modules,
        "keeps_reference": config.actor.use_kl_loss or config.algorithm.use_kl_in_reward,
        "engine_options": {name: value for name, value in engine.items() if value is not None},
        **_shared(config, config.actor, model, total_steps=total_steps),  # type: ignore[typeddict-item]
    }
    devices = gpus(config.trainer.n_gpus_per_node) if devices is None else devices
    if len(devices) < 2:
        return LocalPolicy(model.path, **options)
    if config.actor.strategy == "copies":
        return RankedPolicy(model.path, devices=devices, **options)
    wanted = config.actor.fsdp_config
    sharding = Sharding(offloads=wanted.param_offload, reshards_after_forward=wanted.reshard_after_forward)
    return ShardedPolicy(model.path, devices=devices, sharding=sharding, **options)


def gpus(wanted: int | None) -> list[str]:
    """The devices that train together; none where the best device here does it alone."""
    if wanted is None or wanted == 1:
        return []
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        log.info("trainer.n_gpus_per_node is %d, but this machine has no GPU; using one process", wanted)
        return []
    if wanted > count:
        log.warning("trainer.n_gpus_per_node is %d, but this machine has %d; using those", wanted, count)
    return [f"cuda:{number}" for number in range(min(wanted, count))] if count > 1 else []


def make_critic(config: VERLConfig, *, total_steps: int) -> LocalCritic | None:
    if config.algorithm.adv_estimator != "gae":
        return None
    model = config.critic.model
    return LocalCritic(
        model.path,
        trainable=model.trainable,
        lora_rank=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=model.target_modules,
        **_shared(config, config.critic, model, total_steps=total_steps),
    )


def _shared(
    config: VERLConfig, part: ActorConfig | CriticConfig, model: ModelConfig | CriticModelConfig, *, total_steps: int
) -> dict[str, Any]:
    """What actor and critic both take. A token budget is for batches of any number of sequences."""
    updates = max(1, total_steps * num_updates(config, part))
    return {
        "precision": None if config.model.precision == "auto" else config.model.precision,
        "gradient_checkpointing": model.enable_gradient_checkpointing,
        "packs": model.use_remove_padding,
        "micro_batch_size": None if part.use_dynamic_bsz else part.ppo_micro_batch_size_per_gpu,
        "token_budget": _token_budget(config, part),
        "learning_rate": part.optim.lr,
        "weight_decay": part.optim.weight_decay,
        "betas": part.optim.betas,
        "grad_clip": part.grad_clip,
        "lr_scheduler": part.optim.lr_scheduler,
        "warmup_steps": part.optim.warmup_steps(updates),
        "total_steps": updates,
        "seed": config.trainer.seed,
        "attn_implementation": config.model.attn_implementation,
        "trust_remote_code": model.trust_remote_code,
    }


def _token_budget(config: VERLConfig, part: ActorConfig | CriticConfig) -> int | None:
    """The one that was asked for; None leaves it to the device."""
    sections = ["actor_rollout_ref.actor", *(["critic"] if isinstance(part, CriticConfig) else [])]
    is_given = any(config.origin(f"{section}.ppo_max_token_len_per_gpu") == "given" for section in sections)
    return part.ppo_max_token_len_per_gpu if part.use_dynamic_bsz and is_given else None


def num_updates(config: VERLConfig, part: ActorConfig | CriticConfig) -> int:
    """Updates of a full step."""
    return math.ceil(config.data.train_batch_size / part.ppo_mini_batch_size) * part.ppo_epochs
