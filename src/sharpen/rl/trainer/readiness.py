"""What can be seen to be wrong with the parts of a vessel before anything is played."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from ...errors import ConfigError, SeedIteratorNotAvailable
from ..policy import Actor, Policy
from ..simulator import Simulator
from ..vector_simulator import VectorSimulator


def check_parts(simulator_fn: Any, **parts: Any) -> None:
    """Parts are objects, and the simulator is something that makes them."""
    for name, part in parts.items():
        if isinstance(part, type):
            raise ConfigError(f"{name} is the class {part.__name__}: give an object, {part.__name__}(…)")
    if isinstance(simulator_fn, Simulator) or not callable(simulator_fn):
        raise ConfigError(
            f"simulator_fn is {simulator_fn!r:.200}: give its class, or a function that makes one of an initial state"
        )
    if not isinstance(parts["policy"], Actor):
        raise ConfigError(
            f"{type(parts['policy']).__name__} is no policy, since it has no act(): wrap it with "
            "Tianshou04Policy, SB3Policy or ModulePolicy"
        )
    has_both = parts["state_interpreter"] is not None and parts["action_interpreter"] is not None
    if not _is_vector(simulator_fn) and not has_both:
        raise ConfigError(
            "a simulator needs a state_interpreter and an action_interpreter; only a VectorSimulator has none"
        )


def _is_vector(simulator_fn: Any) -> bool:
    return isinstance(simulator_fn, type) and issubclass(simulator_fn, VectorSimulator)


def check_states(**states: Any) -> None:
    """States have a length and places, so that they can be shuffled and gone through again."""
    for name, given in states.items():
        is_sequence = hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, Mapping)
        if given is not None and not is_sequence:
            raise ConfigError(f"{name} is a {type(given).__name__}: give a sequence of initial states, such as a list")


def check_available(stage: str, states: Any) -> None:
    """There are initial states for a stage."""
    aim = {"train": "train", "val": "validate", "test": "test"}[stage]
    if states is None:
        raise SeedIteratorNotAvailable(f"this vessel has no initial states to {aim} on: give it {stage}_initial_states")
    if not len(states):
        raise SeedIteratorNotAvailable(f"{stage}_initial_states is empty: give it initial states to {aim} on")


def check_trainable(policy: Any) -> None:
    """A policy has what training needs."""
    if not isinstance(policy, Policy):
        lacking = [name for name in ("learn", "state_dict", "load_state_dict") if not hasattr(policy, name)]
        raise ConfigError(f"{type(policy).__name__} cannot be trained: it lacks {', '.join(lacking)}")


def check_spaces(policy: Any, simulator_fn: Any, state_interpreter: Any, action_interpreter: Any) -> None:
    """A policy that says for which spaces it was made is used in them."""
    sees, does = (simulator_fn, simulator_fn) if _is_vector(simulator_fn) else (state_interpreter, action_interpreter)
    observed, taken = getattr(sees, "observation_space", None), getattr(does, "action_space", None)
    if not _is_alike(getattr(policy, "obs_space", None), observed):
        raise ConfigError(
            f"{type(policy).__name__} was made for observations in {policy.obs_space}, but {_name(sees)} gives "
            f"{observed}: make the policy with that space"
        )
    if not _is_alike(getattr(policy, "action_space", None), taken):
        raise ConfigError(
            f"{type(policy).__name__} was made for actions in {policy.action_space}, but {_name(does)} takes "
            f"{taken}: make the policy with that space"
        )


def _name(part: Any) -> str:
    return part.__name__ if isinstance(part, type) else type(part).__name__


def _is_alike(one: Any, other: Any) -> bool:
    """Whether values of both spaces have the same form; bounds may differ, and what is no space is not judged."""
    if not isinstance(one, gym.Space) or not isinstance(other, gym.Space):
        return True
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.keys() == other.keys() and all(_is_alike(one[key], other[key]) for key in one)
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one) == len(other) and all(map(_is_alike, one, other))
    if isinstance(one, spaces.Discrete) and isinstance(other, spaces.Discrete):
        return bool(one.n == other.n and one.start == other.start)
    return type(one) is type(other) and one.shape == other.shape
