"""The names, parameters and defaults that people know: calls that worked before must go on to work."""

import inspect
from typing import Any

import pytest

import sharpen.rl
from sharpen.rl import LogLevel, order_execution

NONE = inspect.Parameter.empty
CALLS: dict[str, dict[str, Any]] = {
    "Simulator": {"initial": NONE, "kwargs": NONE},
    "EnvWrapper": {
        "simulator_fn": NONE,
        "state_interpreter": NONE,
        "action_interpreter": NONE,
        "seed_iterator": None,
        "reward_fn": None,
        "aux_info_collector": None,
        "logger": None,
    },
    "RewardCombination": {"rewards": NONE},
    "GymSpaceValidationError": {"message": NONE, "space": NONE, "x": NONE},
    "DataQueue": {"dataset": NONE, "repeat": 1, "shuffle": True, "producer_num_workers": 0, "queue_maxsize": 0},
    "vectorize_env": {"env_factory": NONE, "env_type": NONE, "concurrency": NONE, "logger": ()},
    "generate_nan_observation": {"obs_space": NONE},
    "check_nan_observation": {"obs": NONE},
    "Trainer": {
        "max_iters": None,
        "val_every_n_iters": None,
        "loggers": None,
        "callbacks": None,
        "finite_env_type": "subproc",
        "concurrency": 2,
        "fast_dev_run": None,
    },
    "Trainer.fit": {"self": NONE, "vessel": NONE, "ckpt_path": None},
    "Trainer.test": {"self": NONE, "vessel": NONE},
    "Trainer.initialize": {"self": NONE},
    "Trainer.initialize_iter": {"self": NONE},
    "Trainer.venv_from_iterator": {"self": NONE, "iterator": NONE},
    "Trainer._metrics_callback": {"self": NONE, "on_episode": NONE, "on_collect": NONE, "log_buffer": NONE},
    "Trainer._min_loglevel": {"self": NONE},
    "Trainer.named_callbacks": {"self": NONE},
    "Trainer.named_loggers": {"self": NONE},
    "Trainer.get_policy_state_dict": {"ckpt_path": NONE},
    "TrainingVessel": {
        "simulator_fn": NONE,
        "state_interpreter": None,
        "action_interpreter": None,
        "policy": NONE,
        "reward": None,
        "train_initial_states": None,
        "val_initial_states": None,
        "test_initial_states": None,
        "buffer_size": 20000,
        "episode_per_iter": 1000,
        "update_kwargs": None,
    },
    "TrainingVesselBase.assign_trainer": {"self": NONE, "trainer": NONE},
    "TrainingVesselBase.log": {"self": NONE, "name": NONE, "value": NONE},
    "TrainingVesselBase.log_dict": {"self": NONE, "data": NONE},
    "train": {
        "simulator_fn": NONE,
        "state_interpreter": NONE,
        "action_interpreter": NONE,
        "initial_states": NONE,
        "policy": NONE,
        "reward": NONE,
        "vessel_kwargs": NONE,
        "trainer_kwargs": NONE,
    },
    "backtest": {
        "simulator_fn": NONE,
        "state_interpreter": NONE,
        "action_interpreter": NONE,
        "initial_states": NONE,
        "policy": NONE,
        "logger": NONE,
        "reward": None,
        "finite_env_type": "subproc",
        "concurrency": 2,
    },
    "LogCollector": {"min_loglevel": LogLevel.PERIODIC},
    "LogCollector.add_scalar": {"self": NONE, "name": NONE, "scalar": NONE, "loglevel": LogLevel.PERIODIC},
    "LogWriter": {"loglevel": LogLevel.PERIODIC},
    "LogWriter.log_episode": {"self": NONE, "length": NONE, "rewards": NONE, "contents": NONE},
    "LogWriter.log_step": {"self": NONE, "reward": NONE, "contents": NONE},
    "LogWriter.aggregation": {"array": NONE, "name": None},
    "LogWriter.on_env_reset": {"self": NONE, "env_id": NONE, "obs": NONE},
    "LogWriter.on_env_step": {
        "self": NONE,
        "env_id": NONE,
        "obs": NONE,
        "rew": NONE,
        "done": NONE,
        "info": NONE,
    },
    "LogBuffer": {"callback": NONE, "loglevel": LogLevel.PERIODIC},
    "ConsoleWriter": {
        "log_every_n_episode": 20,
        "total_episodes": None,
        "float_format": ":.4f",
        "counter_format": ":4d",
        "loglevel": LogLevel.PERIODIC,
    },
    "CsvWriter": {"output_dir": NONE, "loglevel": LogLevel.PERIODIC},
    "EarlyStopping": {
        "monitor": "reward",
        "min_delta": 0.0,
        "patience": 0,
        "mode": "max",
        "baseline": None,
        "restore_best_weights": False,
    },
    "Checkpoint": {
        "dirpath": NONE,
        "filename": "{iter:03d}.pth",
        "save_latest": "link",
        "every_n_iters": None,
        "time_interval": None,
        "save_on_fit_end": True,
    },
    "MetricsWriter": {"dirpath": NONE},
    "order_execution.PPO": {
        "network": NONE,
        "obs_space": NONE,
        "action_space": NONE,
        "lr": NONE,
        "weight_decay": 0.0,
        "discount_factor": 1.0,
        "max_grad_norm": 100.0,
        "reward_normalization": True,
        "eps_clip": 0.3,
        "value_clip": True,
        "vf_coef": 1.0,
        "gae_lambda": 1.0,
        "max_batch_size": 256,
        "deterministic_eval": True,
        "weight_file": None,
    },
    "DQN": {
        "network": NONE,
        "obs_space": NONE,
        "action_space": NONE,
        "lr": NONE,
        "weight_decay": 0.0,
        "discount_factor": 0.99,
        "estimation_step": 1,
        "target_update_freq": 0,
        "reward_normalization": False,
        "is_double": True,
        "clip_loss_grad": False,
        "weight_file": None,
    },
    "order_execution.SingleAssetOrderExecutionSimple": {
        "order": NONE,
        "data_dir": NONE,
        "feature_columns_today": (),
        "feature_columns_yesterday": (),
        "data_granularity": 1,
        "ticks_per_step": 30,
        "vol_threshold": None,
    },
    "order_execution.FullHistoryStateInterpreter": {
        "max_step": NONE,
        "data_ticks": NONE,
        "data_dim": NONE,
        "processed_data_provider": NONE,
    },
    "order_execution.CurrentStepStateInterpreter": {"max_step": NONE},
    "order_execution.CategoricalActionInterpreter": {"values": NONE, "max_step": None},
    "order_execution.TwapRelativeActionInterpreter": {},
    "order_execution.Recurrent": {
        "obs_space": NONE,
        "hidden_dim": 64,
        "output_dim": 32,
        "rnn_type": "gru",
        "rnn_num_layers": 1,
    },
    "order_execution.AllOne": {"obs_space": NONE, "action_space": NONE, "fill_value": 1.0},
    "order_execution.PAPenaltyReward": {"penalty": 100.0, "scale": 1.0},
    "order_execution.PPOReward": {"max_step": NONE, "start_time_index": 0, "end_time_index": 239},
}
CALLS["PPO"] = {**CALLS["order_execution.PPO"], "discount_factor": 0.99, "gae_lambda": 0.95}


def thing(path: str) -> Any:
    found: Any = sharpen.rl
    for name in path.split("."):
        found = order_execution if name == "order_execution" else getattr(found, name)
    return found


@pytest.mark.parametrize("path", CALLS)
def test_a_call_has_the_known_parameters_in_their_order(path: str) -> None:
    given = inspect.signature(thing(path)).parameters
    expected = CALLS[path]
    assert {name: given[name].default for name in list(given)[: len(expected)]} == expected
    assert list(given)[: len(expected)] == list(expected)
    added = list(given.values())[len(expected) :]
    assert all(each.kind is each.KEYWORD_ONLY for each in added), "what is new is given by name"


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("DataQueue", ["activate", "cleanup", "get", "put", "mark_as_done", "done"]),
        ("FiniteVectorEnv", ["collector_guard", "reset", "step", "close"]),
        ("LogCollector", ["reset", "add_string", "add_scalar", "add_array", "add_any", "logs"]),
        ("LogWriter", ["on_env_all_ready", "on_env_all_done", "clear", "state_dict", "load_state_dict"]),
        ("LogBuffer", ["episode_metrics", "collect_metrics", "state_dict", "load_state_dict"]),
        ("TrainingVesselBase", ["train_seed_iterator", "val_seed_iterator", "test_seed_iterator", "trainer"]),
        ("TrainingVesselBase", ["train", "validate", "test", "state_dict", "load_state_dict"]),
        (
            "Callback",
            [f"on_{at}_{end}" for at in ("fit", "iter", "train", "validate", "test") for end in ("start", "end")],
        ),
        ("Callback", ["state_dict", "load_state_dict"]),
    ],
)
def test_the_known_methods_are_there(path: str, names: list[str]) -> None:
    assert [name for name in names if not hasattr(thing(path), name)] == []


def test_a_trainer_has_the_known_attributes_from_the_start() -> None:
    trainer = sharpen.rl.Trainer()
    names = ["should_stop", "metrics", "current_iter", "current_episode", "current_stage"]
    assert [getattr(trainer, name) for name in names] == [False, {}, 0, 0, "train"]
    assert trainer.vessel is None
    assert trainer.callbacks == []
