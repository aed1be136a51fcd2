"""The keys of a configuration of kind `fine-tuning`, and its run.

    kind: fine-tuning
    method: sft                     # or grpo, dpo
    model_name: demo                # a name on the hub, a folder, a .gguf file, or the small model of sharpen[demo]
    train_dataset: data/train.jsonl
    val_dataset: data/val.jsonl
    num_epochs: 1
    use_lora: true

Every option of the method's trainer wrapper is a key. The model is saved as `model/` in the run folder.
"""

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...checks import did_you_mean
from ...components.paths import class_path
from ...errors import ConfigError
from ...llm.training.options import ALGORITHMS, Algorithm, setting_names, trl_fields
from ...loggers import JsonlLogger
from ...trainer.status import RunResult

if TYPE_CHECKING:
    from .train_config import TrainConfig

NAMES: dict[str, str] = {
    "accuracy": "sharpen.llm.create_accuracy_reward",
    "length_penalty": "sharpen.llm.create_length_penalty_reward",
    "steps": "sharpen.llm.create_step_reward",
}
"""Rewards by name."""
DEMO = "demo"
MODEL = "model"
METHODS: tuple[str, ...] = ALGORITHMS
_RENAMED = {"dataset": "train_dataset", "eval_dataset": "val_dataset"}
_OURS = ("self", "output_dir", "resume", "config", "options", *_RENAMED)
_REWARDS = ("reward_fn", "eval_reward_fn")
_PARTS = ("callbacks", "loggers", *_REWARDS)
_OF_EVALUATION = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "seed",
    "precision",
    "allow_download",
    "reward_timeout_seconds",
)


def wrapper_of(config: "TrainConfig") -> Any:
    """Return the trainer wrapper of the method."""
    from ... import llm

    return getattr(llm, f"{_method(config).upper()}TrainerWrapper")


def _method(config: "TrainConfig") -> Algorithm:
    method = config.values.get("method")
    if method not in METHODS:
        hint = did_you_mean(str(method), METHODS) or f" Use one of {', '.join(METHODS)}."
        raise ConfigError(f"{config.source(('method',)).exact()}: method is {method!r}.{hint}")
    return cast(Algorithm, method)


def check(config: "TrainConfig") -> None:
    """Refuse mistakes that can be found without loading anything."""
    from .train_config import EVERYWHERE

    values, specs, method = config.values, config.specs, _method(config)
    names = [*inspect.signature(wrapper_of(config).__init__).parameters, *setting_names(method)]
    if set(values) - {"method", *EVERYWHERE, *_RENAMED.values(), *names}:  # only then, as importing TRL takes seconds
        names += sorted(trl_fields(method))
    config.check_keys(["method", *_RENAMED.values(), *(name for name in names if name not in _OURS)])
    for key in _RENAMED.values():
        config.tasks.check(values.get(key), (key,))
    for key in _PARTS:
        specs.check(values.get(key), (key,))
    for key in ("model_name", "train_dataset"):
        if values.get(key) is None:
            raise ConfigError(f"{config.path.name} has no {key}, which fine-tuning needs")


def fine_tune(config: "TrainConfig", *, resume: Path | None = None) -> RunResult:
    """Fine-tune a model; Ctrl-C stops the run after the current step and saves a checkpoint."""
    from .recorded_run import RecordedRun

    config.require("fine-tuning")
    options = _options(config)
    rows = {new: config.dataset(key) for new, key in _RENAMED.items() if key in config.values}
    make_wrapper(config, options | rows, Path.cwd())  # errors are raised before a run folder is created
    run = RecordedRun(config, default_name=_method(config), resume=resume)

    def work(folder: Path) -> Mapping[str, float]:
        wrapper = make_wrapper(config, options | rows, folder)
        found: Mapping[str, float] = wrapper.train(resume=run.is_resumed)["final_metrics"]
        return found

    return run.execute(_described(config, rows), work)


def make_wrapper(config: "TrainConfig", given: Mapping[str, Any], folder: Path) -> Any:
    """Return the wrapper, which checks its arguments and loads nothing. It saves the model in the run folder."""
    from ...trainer.loop import make_callbacks, make_loggers
    from .simulator import listener_specs

    specs = listener_specs(config, "loggers") if "loggers" in config.values else ["console"]
    loggers = [*make_loggers([each for each in specs if each not in ("jsonl", "JsonlLogger")], folder)]
    callbacks = make_callbacks(listener_specs(config, "callbacks"), folder)
    with config.locating():
        return wrapper_of(config)(
            **given, output_dir=folder / MODEL, loggers=[*loggers, JsonlLogger(folder)], callbacks=callbacks
        )


def _options(config: "TrainConfig") -> dict[str, Any]:
    """Return the options of the wrapper, without data, callbacks and loggers; rewards are built."""
    left_out = ("kind", "folder", "name", "run_dir", "method", "callbacks", "loggers", *_RENAMED.values())
    found = {key: value for key, value in config.values.items() if key not in left_out}
    found["model_name"] = model_of(config, found["model_name"])
    return found | {key: rewards(config, key) for key in _REWARDS if key in found}


def rewards(config: "TrainConfig", key: str) -> Any:
    """Return the reward function under a key, or a list of them."""
    given = config.values.get(key)
    with config.locating():
        if isinstance(given, list):
            return [_reward(config, each, (key, number)) for number, each in enumerate(given)]
        return _reward(config, given, (key,))


def _reward(config: "TrainConfig", given: Any, path: tuple[str | int, ...]) -> Any:
    is_name = isinstance(given, str) and given in NAMES
    return config.specs.build({"type": given} if is_name else given, path)


def model_of(config: "TrainConfig", name: Any) -> str:
    """Return the model to load; a folder beside the configuration takes precedence over a name on the hub."""
    if name == DEMO:
        from ...llm import demo_model

        return demo_model()
    beside = config.folder / str(name)
    return str(beside) if beside.exists() else str(name)


def _described(config: "TrainConfig", rows: Mapping[str, Any]) -> dict[str, Any]:
    kept = config.resolved()
    plain = {key: value for key, value in kept.items() if key not in ("folder", *_PARTS, *_RENAMED.values())}
    sizes = {"train": rows.get("dataset"), "val": rows.get("eval_dataset")}
    return {
        "algorithm": _method(config),
        "model_name": str(config.values["model_name"]),
        "components": {"algorithm": {"class": class_path_of(wrapper_of(config))}},
        "settings": plain,
        "datasets": {
            name: None if each is None else {"class": class_path(each), "size": len(each)}
            for name, each in sizes.items()
        },
    }


def class_path_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def extent(config: "TrainConfig") -> tuple[int, int, tuple[str, ...]]:
    """Return the maximum number of optimiser steps and of sampled completions, and how they were computed."""
    rows = {new: config.dataset(key) for new, key in _RENAMED.items() if key in config.values}
    wrapper = make_wrapper(config, _options(config) | rows, Path.cwd())
    settings, count = wrapper.settings, len(wrapper.dataset)
    steps = settings.max_steps or math.ceil(settings.num_train_epochs * math.ceil(count / wrapper.rows_per_step))
    told = f"{settings.num_train_epochs:g} epochs over {count:,} rows, {wrapper.rows_per_step} rows per step"
    sampled = steps * wrapper.rows_per_step * (settings.num_generations or 0)
    return steps, sampled, (told, "the model is trained and sampled on this machine: no calls to other servers")


def evaluate_tuned(config: "TrainConfig", key: str, model: str | None) -> dict[str, Any]:
    """Return the evaluation of a model on the rows under a key, as `sharpen.llm.evaluate` does it."""
    from ...llm import evaluate

    config.require("fine-tuning")
    rows = config.dataset(key)
    if rows is None:
        raise ConfigError(f"{config.path.name} has no {key}: add one, or choose another --dataset")
    judge = next((rewards(config, each) for each in reversed(_REWARDS) if each in config.values), None)
    # GRPO's sampling settings are for training; an evaluation decodes greedily.
    left_out = ("temperature", "top_p") if _method(config) == "grpo" else ()
    options = {name: config.values[name] for name in _OF_EVALUATION if name in config.values and name not in left_out}
    with config.locating():
        return evaluate(model_of(config, model or config.values["model_name"]), rows, judge, **options)  # type: ignore[arg-type]
