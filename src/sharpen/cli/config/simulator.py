"""The keys of a configuration of kind `simulator`: the components of a vessel and the settings of its trainer.

    kind: simulator
    simulator_fn: room.py:Room
    state_interpreter: {type: "room.py:See"}
    action_interpreter: {type: "room.py:Heat"}
    reward: {type: "room.py:Comfort"}
    policy: {type: PPO, network: {type: MLP, hidden_sizes: [32, 32]}, lr: 3e-3}
    train_initial_states: {range: [0, 20]}
    episode_per_iter: 20
    max_iters: 10

A policy and its network get the spaces of the interpreters. `vessel` names a function or class that makes the whole
vessel instead; then the keys of its components cannot be used.
"""

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...rl import __all__ as _RL_NAMES
from ...secrets import shown
from .sources import Path_

if TYPE_CHECKING:
    from .train_config import TrainConfig

NAMES: dict[str, str] = {name: f"sharpen.rl.{name}" for name in _RL_NAMES}
PARTS = ("state_interpreter", "action_interpreter", "policy", "reward")
STATES = ("train_initial_states", "val_initial_states", "test_initial_states")
_LISTENERS = ("callbacks", "loggers")


def vessel_keys() -> list[str]:
    from ...rl import TrainingVessel

    return list(inspect.signature(TrainingVessel).parameters)


def trainer_keys() -> list[str]:
    from ...rl import Trainer

    return list(inspect.signature(Trainer).parameters)


def check(config: "TrainConfig") -> None:
    """Refuse mistakes that can be found without building anything."""
    values, specs = config.values, config.specs
    config.check_keys(["vessel", *vessel_keys(), *trainer_keys()])
    if "vessel" in values:
        both = [key for key in vessel_keys() if key in values]
        if both:
            raise ConfigError(
                f"{specs.at((both[0],))} cannot be combined with vessel, which makes all its components: remove one"
            )
        specs.check(values["vessel"], ("vessel",))
    elif missing := [key for key in ("simulator_fn", "policy") if values.get(key) is None]:
        raise ConfigError(
            f"{config.path.name} has no {missing[0]}: a simulator needs simulator_fn and policy, or a vessel"
        )
    for key in ("simulator_fn", *PARTS, *_LISTENERS):
        specs.check(values.get(key), (key,))
    for key in STATES:
        _check_states(config, values.get(key), (key,))


def _check_states(config: "TrainConfig", given: Any, path: Path_) -> None:
    if not isinstance(given, Mapping) or "range" not in given:
        config.tasks.check(given, path)
        return
    config.specs.check_names(given, ["range"], path, owner=str(path[-1]))
    numbers = given["range"]
    are_whole = isinstance(numbers, list) and all(isinstance(each, int) and each is not True for each in numbers)
    if not are_whole or not 1 <= len(numbers) <= 3 or (len(numbers) == 3 and numbers[2] == 0):
        raise ConfigError(
            f"{config.specs.at((*path, 'range'))} is {shown(numbers)}: use [stop], [start, stop] or "
            "[start, stop, step] with whole numbers"
        )


def read_states(config: "TrainConfig", key: str) -> Any:
    """Return the initial states of a stage; None if there are none."""
    given = config.values.get(key)
    if isinstance(given, Mapping) and "range" in given:
        return range(*given["range"])
    return config.dataset(key)


def make_vessel(config: "TrainConfig") -> Any:
    """Return the vessel with all its components. Random numbers are seeded first, as networks draw theirs here."""
    from ...rl import TrainingVessel

    _seed(config.values.get("seed"))
    specs, values = config.specs, config.values
    with config.locating():
        if "vessel" in values:
            made = specs.build(values["vessel"], ("vessel",))
            return made() if callable(made) else made
        parts = {key: values[key] for key in vessel_keys() if key in values}
        parts["simulator_fn"] = _simulator(config)
        for key in ("state_interpreter", "action_interpreter", "reward"):
            if parts.get(key) is not None:
                parts[key] = specs.build(parts[key], (key,))
        parts["policy"] = specs.build(values["policy"], ("policy",), _spaces(parts))
        parts |= {key: read_states(config, key) for key in STATES if key in values}
        return TrainingVessel(**parts)


def _simulator(config: "TrainConfig") -> Any:
    """Return the class; with arguments, a function of the initial state that passes them on."""
    given = config.values["simulator_fn"]
    if isinstance(given, str):
        return config.specs.find(given, ("simulator_fn",))
    make = config.specs.find(given["type"], ("simulator_fn", "type"))
    arguments = {key: value for key, value in given.items() if key != "type"}
    return functools.partial(make, **arguments)


def _spaces(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a policy is offered: the spaces of the interpreters, or of a vector simulator."""
    simulator = getattr(parts["simulator_fn"], "func", parts["simulator_fn"])
    seen = getattr(parts.get("state_interpreter"), "observation_space", None) or getattr(
        simulator, "observation_space", None
    )
    done = getattr(parts.get("action_interpreter"), "action_space", None) or getattr(simulator, "action_space", None)
    offered = {"obs_space": seen, "observation_space": seen, "action_space": done}
    return {name: space for name, space in offered.items() if space is not None}


def _seed(seed: Any) -> None:
    if isinstance(seed, int):
        import random

        import numpy as np
        import torch

        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)


def trainer_settings(config: "TrainConfig") -> dict[str, Any]:
    """Return the keywords of the trainer, without callbacks and loggers."""
    return {key: config.values[key] for key in trainer_keys() if key in config.values and key not in _LISTENERS}


def listener_specs(config: "TrainConfig", key: str) -> list[Any]:
    """Return the specs of callbacks or loggers as a list."""
    given = config.values.get(key)
    found = config.specs.ready(given, (key,))
    return [] if found is None else found if isinstance(found, list) else [found]
