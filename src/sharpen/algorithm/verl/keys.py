"""The one table of keys: those that act, those with one possible value, and those that mean nothing here.

Names are verl's, whole and dotted. A key that is in no part of the table is an error, with the nearest name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, get_args

from ...llm.policy.settings import Aggregation, ImportanceMode, KLKind
from .config_input import (
    BETAS,
    FREQUENCY,
    MAPPING,
    MODEL,
    MODULES,
    PATH,
    SEED,
    TEXT,
    TRAINABLE,
    TRUTH,
    Kind,
    choice,
    number,
    one_or_more,
    truth_or,
    whole,
)


@dataclass(frozen=True, slots=True)
class Key:
    """A key that acts. `same_as` names the key whose value is the default."""

    name: str
    default: Any
    kind: Kind
    meaning: str
    same_as: str | None = None
    is_optional: bool = False
    """Whether None is a value of its own. For other keys it means the default, as an empty key of a YAML file does."""


# -- keys that act -----------------------------------------------------------------------------------

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_KL = choice(*get_args(KLKind), others={"kl": "k1", "mse": "k2", "low_var_kl": "k3"})
_ENGINE = choice("auto", "sharpen", "vllm", "openai", others={"hf": "sharpen"})
_KEPT = whole(-1, note="-1 or 0: all")
_LOGGERS = one_or_more("logger names, such as ['console', 'wandb']", keeps_one=False)


def _section(prefix: str, *keys: Key) -> list[Key]:
    return [replace(key, name=f"{prefix}.{key.name}") for key in keys]


_ALGORITHM_KEYS = _section(
    "algorithm",
    Key(
        "adv_estimator",
        "grpo",
        choice("grpo", "gae", "rloo", "reinforce_plus_plus"),
        "how advantages are computed from rewards",
    ),
    Key(
        "use_kl_in_reward",
        False,
        TRUTH,
        "subtract the KL from the model at the start of the run from the reward of each token",
    ),
    Key("gamma", 1.0, number(least=0, most=1), "discount factor of later rewards"),
    Key("lam", 1.0, number(least=0, most=1), "lambda of `gae`"),
    Key("kl_ctrl.kl_coef", 0.001, number(least=0), "weight of the KL in the reward"),
    Key("kl_penalty", "k3", _KL, "how the KL in the reward is estimated"),
    Key("norm_adv_by_std_in_grpo", True, TRUTH, "divide advantages by the standard deviation of the group"),
    Key("max_staleness", 0, whole(0), "steps by which the weights of a rollout may be out of date; 0: lockstep"),
    Key(
        "importance_correction",
        "auto",
        truth_or("auto"),
        "reweight tokens that another policy sampled; auto: if there are any",
    ),
    Key("importance_cap", 2.0, number(least=1), "maximum weight of that correction"),
    Key("importance_mode", "token", choice(*get_args(ImportanceMode)), "per token, or per whole sequence"),
)
_DATA_KEYS = _section(
    "data",
    Key("train_batch_size", 32, whole(1), "tasks in a step; each is run `rollout.n` times"),
    Key("max_prompt_length", 4096, whole(1), "maximum tokens of a prompt; longer ones are counted, not trained on"),
    Key("max_response_length", 2048, whole(1), "maximum tokens of one answer"),
    Key("shuffle", True, TRUTH, "shuffle the tasks in every epoch"),
    Key("seed", None, SEED, "seed of that order", same_as="trainer.seed"),
    Key("apply_chat_template_kwargs", {}, MAPPING, "arguments for the chat template, such as `enable_thinking`"),
)
_ROLLOUT_KEYS = _section(
    _ROLLOUT,
    Key("name", "auto", _ENGINE, "the engine; auto, or vllm if it is not installed: the built-in one"),
    Key("base_url", None, TEXT, "address of the server, for the engine `openai`", is_optional=True),
    Key("n", 4, whole(1), "rollouts of each task, which form a group"),
    Key("temperature", 1.0, number(above=0), "sampling temperature"),
    Key("top_p", 1.0, number(above=0, most=1), "sampling top-p"),
    Key("top_k", -1, whole(-1, note="-1 or 0: all tokens"), "sampling top-k"),
    Key("seed", None, SEED, "seed of sampling", same_as="trainer.seed"),
    Key("tensor_model_parallel_size", 1, whole(1), "GPUs that vLLM spreads one model over"),
    Key("max_num_seqs", None, whole(1), "sequences that run at once; None: the engine decides", is_optional=True),
    Key("val_kwargs.n", 1, whole(1), "rollouts of each task in validation"),
    Key("val_kwargs.temperature", 0.0, number(least=0), "in validation; 0: always the most likely token"),
    Key("val_kwargs.top_p", 1.0, number(above=0, most=1), "in validation"),
    Key("val_kwargs.top_k", -1, whole(-1, note="-1 or 0: all tokens"), "in validation"),
    Key("val_kwargs.do_sample", None, TRUTH, "False: temperature 0 in validation; default: by temperature"),
)
_OPTIM_KEYS = _section(
    "optim",
    Key("lr", 1e-6, number(above=0), "learning rate of AdamW"),
    Key("weight_decay", 0.01, number(least=0), "of AdamW"),
    Key("betas", [0.9, 0.999], BETAS, "of AdamW"),
    Key("lr_warmup_steps", -1, whole(-1, note="-1: by the ratio"), "updates until the full learning rate is reached"),
    Key("lr_warmup_steps_ratio", 0.0, number(least=0, below=1), "the same as a fraction of the run"),
    Key("lr_scheduler", "constant", choice("constant", "linear", "cosine"), "learning rate schedule"),
)
_UPDATE_KEYS = [
    Key("ppo_mini_batch_size", 32, whole(1), "tasks in one update; at most the batch"),
    Key("ppo_micro_batch_size_per_gpu", 4, whole(1), "sequences computed at once"),
    Key("use_dynamic_bsz", None, TRUTH, "size batches by tokens; default unless `ppo_micro_batch_size_per_gpu` is set"),
    Key(
        "ppo_max_token_len_per_gpu",
        16384,
        whole(1),
        "tokens computed at once, with `use_dynamic_bsz`; depends on the device unless it is set",
    ),
    Key("ppo_epochs", 1, whole(1), "passes over the rollouts of a step"),
    Key("grad_clip", 1.0, number(above=0), "maximum norm of the gradient; None: no limit", is_optional=True),
    Key("loss_agg_mode", "token-mean", choice(*get_args(Aggregation)), "how the losses of tokens are combined"),
    *_OPTIM_KEYS,
]
_SHARDED = {"fsdp2": "fsdp", "megatron": "fsdp", "veomni": "fsdp"}
_ACTOR_KEYS = _section(
    _ACTOR,
    *_UPDATE_KEYS,
    Key(
        "strategy", "copies", choice("copies", "fsdp", others=_SHARDED), "what each GPU holds: all weights, or a shard"
    ),
    Key("fsdp_config.param_offload", False, TRUTH, "with `fsdp`: keep the shards in CPU memory"),
    Key("fsdp_config.reshard_after_forward", True, TRUTH, "with `fsdp`: gather each layer again for its backward pass"),
    Key("clip_ratio", 0.2, number(least=0, most=1), "how far from 1 the ratio of new to old policy may be"),
    Key("clip_ratio_low", None, number(least=0, most=1), "the same below 1", same_as=f"{_ACTOR}.clip_ratio"),
    Key("clip_ratio_high", None, number(least=0), "the same above 1", same_as=f"{_ACTOR}.clip_ratio"),
    Key("clip_ratio_c", 3.0, number(above=1), "limit if the advantage is negative; None: no limit", is_optional=True),
    Key("use_kl_loss", False, TRUTH, "add the KL from the model at the start of the run to the loss"),
    Key("kl_loss_coef", 0.001, number(least=0), "its weight"),
    Key("kl_loss_type", "k3", _KL, "how it is estimated"),
    Key("entropy_coeff", 0.0, number(least=0), "weight of the entropy bonus in the loss"),
)
_WEIGHT_KEYS = [
    Key("use_remove_padding", True, TRUTH, "pack sequences without padding"),
    Key("enable_gradient_checkpointing", True, TRUTH, "recompute activations to save memory"),
    Key("lora_rank", 0, whole(0, note="0: no adapter"), "rank of the LoRA adapter to train"),
    Key("lora_alpha", 16.0, number(above=0), "scale of the adapter"),
    Key("target_modules", "all-linear", MODULES, "layers that the adapter is applied to"),
    Key("trainable", None, TRAINABLE, "the weights to train; default: lora if a rank or an adapter is set, else all"),
    Key("trust_remote_code", False, TRUTH, "run code from the model repository"),
]
_MODEL_KEYS = _section(
    _MODEL,
    Key("path", "Qwen/Qwen2.5-1.5B-Instruct", MODEL, "the model: a name on the hub, a folder, or a .gguf file"),
    Key("lora_adapter_path", None, PATH, "an adapter to start from, which names its own base model", is_optional=True),
    *_WEIGHT_KEYS,
    Key("precision", "auto", choice("auto", "fp32", "bf16"), "number format; auto: depends on the device"),
    Key("attn_implementation", None, TEXT, "attention in transformers; None: its default", is_optional=True),
)


def _as_the_actor(keys: Iterable[Key], source: str, prefix: str) -> list[Key]:
    """The same keys of the critic, whose defaults are the values of the actor."""
    return [replace(key, name=f"{prefix}.{key.name}", default=None, same_as=f"{source}.{key.name}") for key in keys]


_CRITIC_KEYS = [
    *_as_the_actor(_UPDATE_KEYS, _ACTOR, "critic"),
    *_section(
        "critic",
        Key("cliprange_value", 0.5, number(above=0), "clip range of its values; None: no clipping", is_optional=True),
    ),
    *_section("critic.model", Key("path", None, MODEL, "the model under the critic", same_as=f"{_MODEL}.path")),
    *_as_the_actor(_WEIGHT_KEYS, _MODEL, "critic.model"),
]
_REWARD_MODEL_KEYS = _section(
    "reward_model",
    Key("enable", False, TRUTH, "score finished rollouts without a reward"),
    Key("path", None, MODEL, "the model that scores them", is_optional=True),
)
_TRAINER_KEYS = _section(
    "trainer",
    Key("total_epochs", 1, whole(1), "passes over the tasks"),
    Key("total_training_steps", None, whole(1), "steps of the run, independent of epochs", is_optional=True),
    Key("test_freq", -1, FREQUENCY, "steps between validations; there is always one at the end"),
    Key("save_freq", -1, FREQUENCY, "steps between saved checkpoints; there is always one at the end"),
    Key("val_before_train", True, TRUTH, "validate before the first step"),
    Key(
        "val_group_key", None, TEXT, "task field; validation is also reported for each of its values", is_optional=True
    ),
    Key("val_only", False, TRUTH, "validate without training"),
    Key("n_gpus_per_node", None, whole(1), "GPUs that sample and train together; None: one", is_optional=True),
    Key("default_local_dir", "checkpoints/", PATH, "the folder of the checkpoints"),
    Key(
        "max_actor_ckpt_to_keep",
        None,
        _KEPT,
        "how many of the newest checkpoints to keep; None: the last one, and the best model",
        is_optional=True,
    ),
    Key(
        "resume_mode",
        "auto",
        choice("auto", "disable", "resume_path"),
        "resume from the last checkpoint, never, or from a path",
    ),
    Key(
        "resume_from_path",
        None,
        PATH,
        "the checkpoint to resume from, with `resume_mode=resume_path`",
        is_optional=True,
    ),
    Key("logger", ["console"], _LOGGERS, "where metrics go"),
    Key("preflight", True, truth_or("strict"), "check the run before the first step; strict: warnings are errors"),
    Key("stop_when_diverged", True, TRUTH, "stop a run whose policy diverges"),
    Key("seed", 0, SEED, "seed of everything that has no separate seed"),
)

KEYS: Mapping[str, Key] = {
    key.name: key
    for section in (
        _ALGORITHM_KEYS,
        _DATA_KEYS,
        _ROLLOUT_KEYS,
        _ACTOR_KEYS,
        _MODEL_KEYS,
        _CRITIC_KEYS,
        _REWARD_MODEL_KEYS,
        _TRAINER_KEYS,
    )
    for key in section
}

LEAVES = frozenset(name for name, key in KEYS.items() if key.kind is MAPPING)
"""Keys whose values are mappings."""

OTHER_NAMES: Mapping[str, str] = {
    f"{_ROLLOUT}.prompt_length": "data.max_prompt_length",
    f"{_ROLLOUT}.response_length": "data.max_response_length",
    f"{_ACTOR}.ppo_micro_batch_size": f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{_ACTOR}.optim.lr_scheduler_type": f"{_ACTOR}.optim.lr_scheduler",
    f"{_ACTOR}.optim.warmup_style": f"{_ACTOR}.optim.lr_scheduler",
    f"{_ACTOR}.use_remove_padding": f"{_MODEL}.use_remove_padding",
    f"{_MODEL}.override_config.attn_implementation": f"{_MODEL}.attn_implementation",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "critic.optim.lr_scheduler_type": "critic.optim.lr_scheduler",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler",
    "reward_model.model.path": "reward_model.path",
    "reward.reward_model.enable": "reward_model.enable",
    "reward.reward_model.model_path": "reward_model.path",
    "algorithm.rollout_correction.rollout_is": "algorithm.importance_mode",
    "algorithm.rollout_correction.rollout_is_threshold": "algorithm.importance_cap",
}
"""Further names of keys that act: verl's older or newer ones."""


# -- keys of published configs that do nothing here ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fixed:
    """A key that may only have the value of what happens here anyway. Left empty, it says nothing."""

    value: Any
    advice: str


FIXED: Mapping[str, Fixed] = {
    "algorithm.kl_ctrl.type": Fixed("fixed", "the KL coefficient is constant: use fixed"),
    "algorithm.use_pf_ppo": Fixed(False, "rollouts are not resampled by reward: use False"),
    "algorithm.filter_groups.enable": Fixed(
        False, "groups with equal rewards are excluded from the update and not replaced by others: use False"
    ),
    f"{_ACTOR}.policy_loss.loss_mode": Fixed("vanilla", "only the clipped loss is available: use vanilla"),
    f"{_ACTOR}.optim.optimizer": Fixed("AdamW", "use AdamW"),
    "critic.optim.optimizer": Fixed("AdamW", "use AdamW"),
    f"{_ROLLOUT}.do_sample": Fixed(
        True, "greedy rollouts of a task are all the same, so nothing can be learned: use True"
    ),
    f"{_ROLLOUT}.ignore_eos": Fixed(False, "an answer ends at the end-of-sequence token: use False"),
    f"{_MODEL}.custom_chat_template": Fixed(None, "put the template into the model folder, and remove this key"),
    f"{_MODEL}.exclude_modules": Fixed([], "list the layers that get an adapter in target_modules instead"),
    f"{_MODEL}.lora.rank": Fixed(0, f"use {_MODEL}.lora_rank, and remove this key"),
    "critic.model.lora.rank": Fixed(0, "use critic.model.lora_rank, and remove this key"),
    "trainer.critic_warmup": Fixed(0, "the critic is trained with the policy from the first step: use 0"),
    "distillation.enabled": Fixed(False, "distillation from a teacher is not supported: use False"),
}

IGNORED: Mapping[str, tuple[str, ...]] = {
    "one process on one machine replaces the workers of verl": (
        "actor_rollout_ref.hybrid_engine",
        "actor_rollout_ref.nccl_timeout",
        "trainer.nnodes",
        "trainer.device",
        "trainer.balance_batch",
        "trainer.ray_wait_register_center_timeout",
        "trainer.use_legacy_worker_impl",
        "trainer.use_v1",
        "trainer.v1.*",
        "ray_init.*",
        "ray_kwargs.*",
        "transfer_queue.*",
        "*._target_",
        "hydra.*",
        "defaults",
    ),
    "with several GPUs, the weights of the actor are always sharded by row": (
        "*.fsdp_config.*",
        "*.megatron.*",
        "*.veomni.*",
        "*.strategy",
        "*.ulysses_sequence_parallel_size",
        "critic.fsdp.*",
        f"{_MODEL}.enable_activation_offload",
        "critic.model.enable_activation_offload",
    ),
    "the engine shares the weights with training and chooses its own sizes": (
        f"{_ROLLOUT}.gpu_memory_utilization",
        f"{_ROLLOUT}.dtype",
        f"{_ROLLOUT}.mode",
        f"{_ROLLOUT}.enforce_eager",
        f"{_ROLLOUT}.cudagraph_capture_sizes",
        f"{_ROLLOUT}.free_cache_engine",
        f"{_ROLLOUT}.load_format",
        f"{_ROLLOUT}.layered_summon",
        f"{_ROLLOUT}.max_model_len",
        f"{_ROLLOUT}.max_num_batched_tokens",
        f"{_ROLLOUT}.enable_chunked_prefill",
        f"{_ROLLOUT}.enable_prefix_caching",
        f"{_ROLLOUT}.logprobs_mode",
        f"{_ROLLOUT}.scheduling_policy",
        f"{_ROLLOUT}.*_parallel_size",
        f"{_ROLLOUT}.nnodes",
        f"{_ROLLOUT}.n_gpus_per_node",
        f"{_ROLLOUT}.multi_stage_wake_up",
        f"{_ROLLOUT}.update_weights_bucket_megabytes",
        f"{_ROLLOUT}.checkpoint_engine.*",
        f"{_ROLLOUT}.disaggregation.*",
        f"{_ROLLOUT}.engine_kwargs.*",
        f"{_ROLLOUT}.skip_tokenizer_init",
        f"{_ROLLOUT}.full_determinism",
        f"{_ROLLOUT}.quantization*",
        f"{_ROLLOUT}.qat*",
        f"{_ROLLOUT}.mtp*",
        f"{_ROLLOUT}.limit_images",
        f"{_ROLLOUT}.moe_*",
        f"{_ROLLOUT}.enable_rollout_routing_replay",
    ),
    "log-probabilities come from the engine, or are computed with the batch sizes of the actor": (
        "actor_rollout_ref.ref.*",
        f"{_ROLLOUT}.log_prob_*",
        f"{_ROLLOUT}.micro_batch_size",
        f"{_ROLLOUT}.calculate_log_probs",
        "critic.forward_*",
    ),
    "the agent controls its prompts, calls and turns": (
        f"{_ROLLOUT}.multi_turn.*",
        f"{_ROLLOUT}.agent.*",
        f"{_ROLLOUT}.chat_scheduler",
        f"{_ROLLOUT}.trace_aggregator.*",
        f"{_ROLLOUT}.over_sample_rate",
        f"{_ROLLOUT}.use_fire_sampling",
        f"{_ROLLOUT}.skip_rollout",
        f"{_ROLLOUT}.skip_dump_dir",
        "skip.*",
        "agentlightning.*",
    ),
    "data sets are passed to the trainer, and the agent creates the prompts": (
        "data.train_files",
        "data.val_files",
        "data.*_max_samples",
        "data.*_key",
        "data.val_batch_size",
        "data.gen_batch_size",
        "data.tokenizer",
        "data.use_shm",
        "data.truncation",
        "data.filter_overlong_prompts*",
        "data.return_*",
        "data.dataloader_num_workers",
        "data.validation_shuffle",
        "data.trust_remote_code",
        "data.custom_cls.*",
        "data.sampler.*",
        "data.datagen.*",
        "data.tool_config_path",
        "data.function_tool_path",
        "data.image_patch_size",
        "data.mm_processor_kwargs*",
        "data.cache_dir",
    ),
    "the agent emits its rewards": (
        "custom_reward_function.*",
        "sandbox_fusion.*",
        "reward.*",
        "reward_model.micro_batch_size*",
        "reward_model.max_length",
        "reward_model.use_dynamic_bsz",
        "reward_model.forward_max_token_len_per_gpu",
        "reward_model.reward_manager",
        "reward_model.reward_kwargs.*",
        "reward_model.launch_reward_fn_async",
        "reward_model.sandbox_fusion.*",
        "reward_model.overlong_buffer.*",
        "reward_model.enable_resource_pool",
        "reward_model.n_gpus_per_node",
        "reward_model.nnodes",
        "reward_model.num_workers",
        "reward_model.use_reward_loop",
        "reward_model.reward_loop_*",
        "reward_model.rollout.*",
        "reward_model.model.*",
    ),
    "the policy decides how it computes": (
        "*.use_torch_compile",
        "*.use_fused_kernels",
        "*.entropy_from_logits_*",
        "*.entropy_checkpointing",
        "*.optim.optimizer_impl",
        "*.optim.override_optimizer_config*",
        "*.optim.zero_indexed_step",
        "*.optim.total_training_steps",
        "*.qat.*",
        "*.router_replay.*",
        f"{_ACTOR}.pad_to_length*",
        f"{_ACTOR}.calculate_*",
        f"{_ACTOR}.use_prefix_grouper",
        f"{_ACTOR}.freeze_vision_tower",
        f"{_MODEL}.use_liger",
        f"{_MODEL}.use_shm",
        f"{_MODEL}.use_fused_loss",
        f"{_MODEL}.return_last_hidden_state",
        f"{_MODEL}.external_lib",
        f"{_MODEL}.hf_config_path",
        f"{_MODEL}.tokenizer_path",
        "*.model.fused_kernel_options.*",
        "*.model.override_config.*",
        "*.model.tiled_mlp.*",
        "*.model.mtp.*",
        "*.model.lora.*",
        "critic.model.external_lib",
        "critic.model.hf_config_path",
        "critic.model.tokenizer_path",
        "critic.model.use_shm",
        "critic.model.use_liger",
        "critic.model.custom_chat_template",
        "critic.model.exclude_modules",
        "critic.model.lora_adapter_path",
        "critic.enable",
        "*.rollout_n",
    ),
    "mini-batches are shuffled with trainer.seed": (
        f"{_ACTOR}.shuffle",
        "critic.shuffle",
        "*.data_loader_seed",
    ),
    "grad_clip limits the gradient": ("*.optim.clip_grad",),
    "schedules decay to 0": ("*.optim.min_lr_ratio", "*.optim.num_cycles"),
    "the width of that loss is data.max_response_length": ("*.loss_scale_factor",),
    "algorithm.importance_correction and .importance_cap control this": (
        f"{_ACTOR}.tis_imp_ratio_cap",
        "algorithm.rollout_correction.*",
    ),
    "this part of verl's algorithms is switched off": (
        "algorithm.kl_ctrl.horizon",
        "algorithm.kl_ctrl.target_kl",
        "algorithm.pf_ppo.*",
        "algorithm.filter_groups.*",
        f"{_ACTOR}.policy_loss.*",
        f"{_ACTOR}.tau_pos",
        f"{_ACTOR}.tau_neg",
        "distillation.*",
    ),
    "the run manages its own folder, names, rollouts and checkpoints": (
        "trainer.project_name",
        "trainer.experiment_name",
        "trainer.log_val_generations",
        "trainer.rollout_data_dir",
        "trainer.validation_data_dir",
        "trainer.default_hdfs_dir",
        "trainer.del_local_ckpt_after_load",
        "trainer.max_critic_ckpt_to_keep",
        "trainer.esi_redundant_time",
        "*.checkpoint.*",
        f"{_ROLLOUT}.trace.*",
    ),
    "use an external profiler": (
        "*.profiler.*",
        "global_profiler.*",
        "trainer.profile_steps",
        "trainer.*_nsight_options*",
        f"{_ROLLOUT}.prometheus.*",
        f"{_ROLLOUT}.disable_log_stats",
    ),
}
"""Patterns of keys by the reason why they do nothing; `*` stands for anything, dots too."""


# -- finding a key -----------------------------------------------------------------------------------

_PATTERNS = [pattern for patterns in IGNORED.values() for pattern in patterns]
_TOPS = {name.partition(".")[0] for name in (*KEYS, *OTHER_NAMES, *FIXED, *_PATTERNS)}


def _sections(names: Iterable[str]) -> frozenset[str]:
    """Every section that one of the keys stands in."""
    split = [name.split(".") for name in names]
    return frozenset(".".join(parts[:level]) for parts in split for level in range(1, len(parts)))


_MEANINGFUL = _sections((*KEYS, *OTHER_NAMES, *FIXED))
_SECTIONS = _MEANINGFUL | _sections(_PATTERNS)


def is_section(name: str) -> bool:
    """Whether keys stand under this name."""
    return name in _SECTIONS


def full_name(name: str) -> str | None:
    """The key that acts under this name, which may be another name of it."""
    return name if name in KEYS else OTHER_NAMES.get(name)


def why_ignored(name: str) -> str | None:
    """The reason why a key means nothing here, if it is one of those."""
    if name.partition(".")[0] not in _TOPS:
        return None
    for reason, patterns in IGNORED.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return reason
    return None


def family(name: str) -> str:
    """A key that means nothing, by its widest section in which no key means anything: `data.custom_cls.*`."""
    parts = name.split(".")
    for level in range(1, len(parts)):
        section = ".".join(parts[:level])
        if section not in _MEANINGFUL:
            return f"{section}.*"
    return name


def nearest_key(name: str) -> str | None:
    """The known key most like an unknown one, rather one that acts: the same end, or about the same letters."""
    others = [*FIXED, *(each for each in _PATTERNS if "*" not in each)]
    for known in ([*KEYS, *OTHER_NAMES], others):
        if found := _nearest(name, known):
            return found
    by_end = {each.rpartition(".")[2]: each for each in reversed([*KEYS, *OTHER_NAMES, *others])}
    ends = get_close_matches(name.rpartition(".")[2], by_end, 1, cutoff=0.7)
    return by_end[ends[0]] if ends else None


def _nearest(name: str, known: list[str]) -> str | None:
    same_end = [each for each in known if each.endswith(f".{name}") or name.endswith(f".{each}")]
    return next(iter(same_end or get_close_matches(name, known, 1, cutoff=0.8)), None)
