"""Configs as they are published for verl and for agents on top of it are taken as they stand."""

from pathlib import Path
from typing import Any

from tests.algorithm.internals import read_config

FROM_THE_DOCUMENT: dict[str, Any] = {
    "algorithm": {
        "adv_estimator": "grpo",
        "use_kl_in_reward": False,
    },
    "data": {
        "train_batch_size": 32,
        "max_prompt_length": 4096,
        "max_response_length": 2048,
    },
    "actor_rollout_ref": {
        "rollout": {
            "tensor_model_parallel_size": 1,
            "n": 4,
            "temperature": 0.7,
        },
        "actor": {
            "ppo_mini_batch_size": 32,
            "optim": {"lr": 1e-6},
        },
    },
}

TOOL_AGENT: dict[str, Any] = {
    "agentlightning": {"port": 9999, "trace_aggregator": {"level": "trajectory"}},
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {"train_batch_size": 16, "max_prompt_length": 2048, "max_response_length": 1024, "truncation": "error"},
    "actor_rollout_ref": {
        "rollout": {
            "name": "vllm",
            "n": 8,
            "tensor_model_parallel_size": 1,
            "gpu_memory_utilization": 0.6,
            "log_prob_micro_batch_size_per_gpu": 4,
            "multi_turn": {"format": "hermes"},
            "engine_kwargs": {"vllm": {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}},
            "trace_aggregator": {"mode": "transition", "string_tolerance": 0},
        },
        "actor": {
            "ppo_mini_batch_size": 16,
            "ppo_micro_batch_size_per_gpu": 2,
            "optim": {"lr": 2e-6},
            "use_kl_loss": False,
            "kl_loss_coef": 0.0,
            "entropy_coeff": 0,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.3,
            "fsdp_config": {"param_offload": True, "optimizer_offload": True},
        },
        "ref": {"log_prob_micro_batch_size_per_gpu": 8, "fsdp_config": {"param_offload": True}},
        "model": {
            "path": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
            "use_remove_padding": True,
            "enable_gradient_checkpointing": True,
            "lora_rank": 32,
        },
    },
    "trainer": {
        "n_gpus_per_node": 1,
        "nnodes": 1,
        "val_before_train": True,
        "critic_warmup": 0,
        "logger": ["console", "wandb"],
        "project_name": "agents",
        "experiment_name": "tools",
        "save_freq": 64,
        "test_freq": 32,
        "total_epochs": 2,
    },
}

# As on verl's command line, where every key is dotted.
PPO_WITH_A_CRITIC: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": "False",
    "data.train_files": "gsm8k/train.parquet",
    "data.val_files": "gsm8k/test.parquet",
    "data.train_batch_size": 256,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.filter_overlong_prompts": True,
    "actor_rollout_ref.model.path": "deepseek-ai/deepseek-llm-7b-chat",
    "actor_rollout_ref.actor.optim.lr": "1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 16,
    "actor_rollout_ref.actor.fsdp_config.param_offload": False,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 4,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.4,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 32,
    "critic.optim.lr": "1e-5",
    "critic.model.path": "deepseek-ai/deepseek-llm-7b-base",
    "critic.model.use_remove_padding": True,
    "critic.model.fsdp_config.param_offload": False,
    "critic.ppo_micro_batch_size_per_gpu": 32,
    "trainer.critic_warmup": 0,
    "trainer.logger": ["console", "wandb"],
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "trainer.total_epochs": 15,
}

# As verl's own file of defaults: references, values that have to be given, and empty ones.
DEFAULTS_IN_YAML = """
defaults: [ppo_trainer, _self_]
data:
  train_files: ~/data/train.parquet
  prompt_key: prompt
  max_prompt_length: 1024
  max_response_length: 512
  train_batch_size: 128
  val_batch_size: null
  shuffle: true
  seed: null
  apply_chat_template_kwargs: {enable_thinking: false}
  custom_cls: {path: null, name: null}
actor_rollout_ref:
  hybrid_engine: true
  nccl_timeout: 600
  model:
    _target_: verl.workers.config.HFModelConfig
    path: ~/models/small
    external_lib: null
    override_config: {attn_implementation: sdpa}
    use_liger: false
  actor:
    strategy: fsdp
    ppo_mini_batch_size: 256
    ppo_micro_batch_size: null
    ppo_micro_batch_size_per_gpu: null
    use_dynamic_bsz: true
    ppo_max_token_len_per_gpu: 8192
    policy_loss: {loss_mode: vanilla, clip_cov_ratio: 0.0002}
    use_kl_loss: true
    kl_loss_type: low_var_kl
    checkpoint: {save_contents: [model], load_contents: '${.save_contents}'}
    optim: {lr: 1e-6, lr_warmup_steps: -1, lr_warmup_steps_ratio: 0.1, warmup_style: cosine, total_training_steps: -1}
  ref:
    strategy: ${actor_rollout_ref.actor.strategy}
    log_prob_use_dynamic_bsz: ${oc.select:actor_rollout_ref.actor.use_dynamic_bsz,false}
    model: null
  rollout:
    name: ???
    mode: async
    temperature: 1.0
    top_k: -1
    top_p: 1
    n: 5
    prompt_length: ${data.max_prompt_length}
    response_length: ${oc.select:data.max_response_length,512}
    do_sample: true
    max_num_seqs: 256
    engine_kwargs: {vllm: {}, sglang: {}}
    val_kwargs: {top_k: -1, top_p: 1.0, temperature: 0, n: 1, do_sample: false}
critic:
  ppo_mini_batch_size: ${actor_rollout_ref.actor.ppo_mini_batch_size}
  ppo_max_token_len_per_gpu: 32768
  forward_max_token_len_per_gpu: ${.ppo_max_token_len_per_gpu}
  optim: {lr: 1e-5}
  model: {path: '${actor_rollout_ref.model.path}', tokenizer_path: '${actor_rollout_ref.model.path}'}
reward_model:
  enable: false
  model: {path: ~/models/judge, input_tokenizer: '${actor_rollout_ref.model.path}'}
  use_dynamic_bsz: ${critic.use_dynamic_bsz}
  reward_manager: naive
custom_reward_function: {path: null, name: compute_score}
algorithm:
  adv_estimator: grpo
  kl_penalty: kl
  kl_ctrl: {type: fixed, kl_coef: 0.001, horizon: 10000, target_kl: 0.1}
  use_pf_ppo: false
trainer:
  project_name: examples
  experiment_name: gsm8k
  default_local_dir: runs/${trainer.project_name}/${trainer.experiment_name}
  total_training_steps: null
  total_epochs: 30
  resume_mode: auto
  resume_from_path: null
  device: cuda
ray_kwargs: {ray_init: {num_cpus: null}}
"""


def test_the_example_of_the_document_is_taken() -> None:
    config = read_config(FROM_THE_DOCUMENT)
    assert config.rollout.temperature == 0.7
    assert config.actor.optim.lr == 1e-6
    assert config.actor.optim.weight_decay == 0.01
    assert config.model.path == "Qwen/Qwen2.5-1.5B-Instruct"


def test_the_config_of_an_agent_with_tools_is_taken() -> None:
    config = read_config(TOOL_AGENT)
    assert (config.actor.clip_ratio_low, config.actor.clip_ratio_high) == (0.2, 0.3)
    assert (config.model.trainable, config.model.lora_rank) == ("lora", 32)
    assert not config.actor.use_dynamic_bsz
    assert config.actor.ppo_micro_batch_size_per_gpu == 2
    line = config.ignored
    assert line is not None
    assert "agentlightning.*" in line
    assert "actor_rollout_ref.rollout.gpu_memory_utilization" in line
    assert "actor_rollout_ref.actor.fsdp_config.optimizer_offload" in line
    assert "(data sets are passed to the trainer" in line


def test_a_config_of_dotted_names_with_a_critic_is_taken() -> None:
    config = read_config(PPO_WITH_A_CRITIC)
    assert config.algorithm.adv_estimator == "gae"
    assert config.algorithm.use_kl_in_reward is False
    assert config.critic.optim.lr == 1e-5
    assert config.critic.model.path == "deepseek-ai/deepseek-llm-7b-base"
    assert config.critic.ppo_micro_batch_size_per_gpu == 32
    assert config.critic.ppo_mini_batch_size == 64


def test_a_yaml_file_of_verl_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "trainer.yaml"
    path.write_text(DEFAULTS_IN_YAML, encoding="utf-8")
    config = read_config(path)
    assert read_config(str(path)) == config
    assert config.actor.optim.lr == 1e-6
    assert config.actor.optim.lr_scheduler == "cosine"
    assert config.actor.optim.warmup_steps(200) == 20
    assert config.actor.ppo_mini_batch_size == config.critic.ppo_mini_batch_size == 128
    assert config.data.max_prompt_length == 1024
    assert config.data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert config.model.path == config.critic.model.path == str(Path("~/models/small").expanduser())
    assert config.model.attn_implementation == "sdpa"
    assert config.rollout.name == "auto"
    assert config.algorithm.kl_penalty == "k1"
    assert config.actor.kl_loss_type == "k3"
    assert config.trainer.default_local_dir == "runs/examples/gsm8k"
    assert config.origin("actor_rollout_ref.rollout.name") == "default"
    assert all("ppo_mini_batch_size is 256" in line for line in config.doubts)
    assert len(config.doubts) == 2
