"""TRL's own option names: which pass through, which are ours under another name, which are refused and why.

The tables stand here so that a misspelt name is found without importing TRL, which takes seconds. A test holds them
against the installed TRL.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...checks import is_int, is_number
from ...errors import ConfigError

Algorithm = Literal["sft", "grpo", "dpo"]


@dataclass(frozen=True)
class Option:
    """An option of TRL that passes through."""

    kinds: tuple[str, ...]
    """Of int, float, bool, str, list, dict, None."""
    algorithms: frozenset[str]


def _table(text: str) -> dict[str, Option]:
    rows = [line.split() for line in text.strip().splitlines()]
    return {name: Option(tuple(kinds.split("|")), frozenset(algorithms)) for name, kinds, *algorithms in rows}


PASSED = _table("""
max_steps                                int         sft grpo dpo
lr_scheduler_type                        str         sft grpo dpo
lr_scheduler_kwargs                      dict|None   sft grpo dpo
optim                                    str         sft grpo dpo
optim_args                               str|None    sft grpo dpo
optim_target_modules                     list|str|None  sft grpo dpo
weight_decay                             float       sft grpo dpo
adam_beta1                               float       sft grpo dpo
adam_beta2                               float       sft grpo dpo
adam_epsilon                             float       sft grpo dpo
max_grad_norm                            float       sft grpo dpo
tf32                                     bool|None   sft grpo dpo
gradient_checkpointing_kwargs            dict|None   sft grpo dpo
torch_compile                            bool        sft grpo dpo
torch_compile_backend                    str|None    sft grpo dpo
torch_compile_mode                       str|None    sft grpo dpo
use_liger_kernel                         bool        sft grpo dpo
liger_kernel_config                      dict|None   sft grpo dpo
neftune_noise_alpha                      float|None  sft grpo dpo
torch_empty_cache_steps                  int|None    sft grpo dpo
logging_first_step                       bool        sft grpo dpo
log_level                                str         sft grpo dpo
include_num_input_tokens_seen            bool|str    sft grpo dpo
per_device_eval_batch_size               int         sft dpo
full_determinism                         bool        sft grpo dpo
data_seed                                int|None    sft dpo
dataloader_drop_last                     bool        sft dpo
dataloader_num_workers                   int         sft grpo dpo
dataloader_persistent_workers            bool        sft grpo dpo
dataloader_prefetch_factor               int|None    sft grpo dpo
dataloader_multiprocessing_context       str|None    sft grpo dpo
train_sampling_strategy                  str         sft dpo
length_column_name                       str         sft dpo
debug                                    str|list    sft grpo dpo
router_aux_loss_coef                     float|None  sft grpo dpo
pad_to_multiple_of                       int|str|None  sft grpo dpo
loss_type                                str|list    sft grpo dpo
chat_template_path                       str|None    sft
dataset_num_proc                         int|None    sft dpo
eos_token                                str|None    sft
truncation_mode                          str         sft dpo
shuffle_dataset                          bool        sft grpo
packing                                  bool        sft
packing_strategy                         str         sft
padding_free                             bool        sft
eval_packing                             bool|None   sft
completion_only_loss                     bool|None   sft
assistant_only_loss                      bool        sft
label_smoothing_factor                   float       sft
activation_offloading                    bool        sft dpo
disable_dropout                          bool        grpo dpo
cast_lm_head_to_fp32                     bool        grpo
generation_batch_size                    int|None    grpo
steps_per_generation                     int|None    grpo
top_k                                    int         grpo
min_p                                    float|None  grpo
generation_kwargs                        dict|None   grpo
chat_template_kwargs                     dict|None   grpo
repetition_penalty                       float       grpo
cache_implementation                     str|None    grpo
use_vllm                                 bool        grpo
vllm_mode                                str         grpo
vllm_model_impl                          str         grpo
vllm_enable_sleep_mode                   bool        grpo
vllm_structured_outputs_regex            str|None    grpo
vllm_server_base_url                     str|None    grpo
vllm_server_host                         str         grpo
vllm_server_port                         int         grpo
vllm_server_timeout                      float       grpo
vllm_group_port                          int         grpo
vllm_gpu_memory_utilization              float       grpo
vllm_max_model_length                    int|None    grpo
vllm_tensor_parallel_size                int         grpo
vllm_importance_sampling_correction      bool        grpo
vllm_importance_sampling_mode            str         grpo
vllm_importance_sampling_clip_max        float|None  grpo
vllm_importance_sampling_clip_min        float|None  grpo
use_transformers_continuous_batching     bool        grpo
transformers_continuous_batching_config  dict|None   grpo
beta                                     float       grpo dpo
num_iterations                           int         grpo
epsilon                                  float       grpo
epsilon_high                             float|None  grpo
delta                                    float|None  grpo
sapo_temperature_neg                     float       grpo
sapo_temperature_pos                     float       grpo
vespo_k_pos                              float       grpo
vespo_lambda_pos                         float       grpo
vespo_k_neg                              float       grpo
vespo_lambda_neg                         float       grpo
importance_sampling_level                str         grpo
reward_weights                           list|None   grpo
multi_objective_aggregation              str         grpo
scale_rewards                            str|bool    grpo
mask_truncated_completions               bool        grpo
top_entropy_quantile                     float       grpo
entropy_coef                             float       grpo
use_adaptive_entropy                     bool        grpo
entropy_coef_min                         float       grpo
entropy_coef_max                         float       grpo
entropy_coef_delta                       float       grpo
entropy_target                           float       grpo
off_policy_mask_threshold                float|None  grpo
use_bias_correction_kl                   bool        grpo
log_completions                          bool        grpo
num_completions_to_print                 int|None    grpo
log_unique_prompts                       bool        grpo
sync_ref_model                           bool        grpo dpo
ref_model_mixup_alpha                    float       grpo dpo
ref_model_sync_steps                     int         grpo dpo
precompute_ref_log_probs                 bool        dpo
precompute_ref_batch_size                int|None    dpo
loss_weights                             list|None   dpo
ld_alpha                                 float|None  dpo
f_divergence_type                        str         dpo
f_alpha_divergence_coef                  float       dpo
label_smoothing                          float       dpo
use_weighting                            bool        dpo
discopop_tau                             float       dpo
""")

OURS: Mapping[str, str] = {
    "output_dir": "output_dir",
    "num_train_epochs": "num_train_epochs",
    "per_device_train_batch_size": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "learning_rate": "learning_rate",
    "warmup_steps": "warmup",
    "logging_steps": "logging_steps",
    "save_steps": "save_steps",
    "save_total_limit": "save_total_limit",
    "eval_steps": "eval_steps",
    "max_length": "max_length",
    "max_completion_length": "max_new_tokens",
    "num_generations": "num_generations",
    "temperature": "temperature",
    "top_p": "top_p",
    "bf16": "precision",
    "fp16": "precision",
    "gradient_checkpointing": "gradient_checkpointing",
    "trust_remote_code": "trust_remote_code",
    "seed": "seed",
}
"""Options of TRL that are settings of ours, and the name of the setting."""

_REASONS: Mapping[str, tuple[str, ...]] = {
    "metrics are sent to the loggers: pass loggers=[...], for example with a WandbLogger": (
        *("report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
    ),
    "progress is shown by the ConsoleLogger: pass loggers=[...] to choose others": ("disable_tqdm",),
    "use logging_steps": ("logging_strategy",),
    "a loss that is not finite ends the run, so it must not be filtered": ("logging_nan_inf_filter",),
    "training does not upload anything: upload output_dir afterwards with `hf upload`": (
        *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
        *("hub_revision", "log_completions_hub_repo"),
    ),
    "the wrapper writes full checkpoints: use save_steps (0: only at the end) and save_total_limit": (
        *("save_strategy", "save_only_model", "save_on_each_node", "enable_jit_checkpoint"),
    ),
    "use resume=True, or resume='path of a checkpoint'": ("resume_from_checkpoint",),
    "a resumed run always continues with the next row and the saved state of its callbacks": (
        *("ignore_data_skip", "restore_callback_states_from_checkpoint"),
    ),
    "the model of the last step is saved; the callback Checkpoint(keep_best=...) also keeps the best one": (
        *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
    ),
    "the wrapper runs the evaluation: pass eval_dataset, and eval_steps for its interval": (
        *("eval_strategy", "eval_delay", "eval_on_start", "do_eval", "num_generations_eval"),
    ),
    "it configures compute_metrics, which is not used here: pass eval_reward_fn": (
        *("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"),
        *("include_for_metrics", "batch_eval_metrics", "label_names"),
    ),
    "evaluation uses the precision of training: set precision": ("bf16_full_eval", "fp16_full_eval"),
    "it is for command-line scripts: call train()": ("do_train", "do_predict"),
    "training runs in one process on one device": (
        *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"),
        *("ddp_backend", "ddp_timeout", "fsdp", "fsdp_config", "deepspeed", "parallelism_config", "local_rank"),
        *("ds3_gather_for_generation", "average_tokens_across_devices", "log_on_each_node", "log_level_replica"),
        *("accelerator_config",),
    ),
    "the best available device is used: set CUDA_VISIBLE_DEVICES='' to train on the CPU": ("use_cpu",),
    "the seed determines the order of rows, so that a run can be reproduced": ("dataloader_in_order",),
    "it is set according to the device": ("dataloader_pin_memory",),
    "it is set according to the algorithm": ("remove_unused_columns",),
    "a run whose batch size changes automatically cannot be resumed exactly: lower batch_size": (
        *("auto_find_batch_size",),
    ),
    "training never uses the cache, and sampling always does": ("use_cache",),
    "memory is estimated before training; measure it with torch.cuda.max_memory_allocated()": (
        *("skip_memory_metrics",),
    ),
    "the wrapper loads the model itself: use precision and trust_remote_code": ("model_init_kwargs",),
    "the wrapper prepares the rows, from the columns prompt and completion": (
        *("dataset_text_field", "dataset_kwargs"),
    ),
    "the padding token is set when the model is loaded": ("pad_token",),
    "prompts and completions contain only text": ("log_multimodal",),
    "completions are generated without tools": ("max_tool_calling_iterations",),
    "TRL is removing it: use use_transformers_continuous_batching": ("use_transformers_paged",),
    "TRL is removing it: use vllm_importance_sampling_clip_max": ("vllm_importance_sampling_cap",),
}

REFUSED: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names}

REFUSED_IN: Mapping[tuple[str, str], str] = {
    ("dpo", "padding_free"): "TRL does not currently support it in DPO",
    ("grpo", "label_smoothing_factor"): "GRPO's loss has no labels",
    ("dpo", "label_smoothing_factor"): "DPO calls it label_smoothing",
    ("grpo", "per_device_eval_batch_size"): "GRPO evaluates generated answers, not a loss",
    ("grpo", "data_seed"): "GRPO samples its prompts with seed",
    ("grpo", "dataloader_drop_last"): "GRPO always drops the last incomplete batch of an epoch",
    ("grpo", "train_sampling_strategy"): "GRPO has its own sampler of prompts: see shuffle_dataset",
    ("grpo", "length_column_name"): "GRPO has its own sampler of prompts: see shuffle_dataset",
}
"""Options that TRL has for an algorithm, where they do nothing."""


def check_kind(name: str, value: Any) -> None:
    """Refuse a value of another type than the option's."""
    option = PASSED.get(name)
    if option is not None and not any(_is_of(value, kind) for kind in option.kinds):
        raise ConfigError(f"{name} is {value!r}: use {' or '.join(_WORDS[kind] for kind in option.kinds)}")


_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
    "str": "a string",
    "list": "a list",
    "dict": "a dict",
    "None": "None",
}


def _is_of(value: Any, kind: str) -> bool:
    if kind == "int":
        return is_int(value)
    if kind == "float":
        return is_number(value)
    types: dict[str, type | tuple[type, ...]] = {"bool": bool, "str": str, "list": (list, tuple), "dict": Mapping}
    return value is None if kind == "None" else isinstance(value, types[kind])
