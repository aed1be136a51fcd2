"""The rewards that a call may name: registered functions, and rewards that agents create.

A created reward is a spec in JSON, kept in the base folder for later processes. It holds the spec of its base whole,
so that creating another reward under the name of the base changes nothing. A registered function lives in this process
and travels to a job when the job begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from ..plain_json import write_json
from ..reward_runner import RewardFunction
from ..rewards import create_accuracy_reward, create_length_penalty_reward, create_step_reward
from .errors import ParameterError
from .workspace import Workspace, check_name, read_json, unknown

Spec = dict[str, Any]
Functions = Mapping[str, RewardFunction]

ACCURACY: Spec = {"reward_type": "accuracy"}
_REGISTERED = "registered"
_SETTINGS = {
    "accuracy": ("tolerance",),
    "length_penalty": ("max_length", "penalty_weight"),
    "step": ("step_bonus",),
}


@dataclass(frozen=True)
class Created:
    """A reward that was created, and whether it replaced another of its name."""

    name: str
    spec: Spec
    is_replaced: bool


class RewardRegistry:
    """Finds rewards by name."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._registered: dict[str, RewardFunction] = {}

    def register(self, name: str, reward_fn: RewardFunction) -> None:
        """Keep a function under a name, in this process."""
        check_name("reward", name)
        if not callable(reward_fn):
            raise ConfigError(f"the reward {name!r} is {reward_fn!r}: pass a function f(completions, **columns)")
        if name == "accuracy":
            raise ConfigError("'accuracy' is the default reward of training: choose another name")
        if name in self._created():
            raise ConfigError(f"a reward named {name!r} was already created in this base folder: choose another name")
        self._registered[name] = reward_fn

    def create(self, given: Mapping[str, Any]) -> Created:
        """Make a reward from the keys of a call, and keep it."""
        name = _checked_name(given)
        if name in self._registered:
            raise ParameterError.of("name", name, "a function is already registered under this name: choose another")
        spec = self._spec(given)
        if name == "accuracy" and spec != ACCURACY:
            raise ParameterError.of("name", name, "accuracy is the default reward of training: choose another name")
        build(spec, self._registered)  # its own checks
        with self._workspace.locked():
            known = self._created()
            is_replaced = name in known and known[name] != spec
            if name != "accuracy":
                write_json(self._workspace.rewards, {**known, name: spec})
        return Created(name, spec, is_replaced)

    def _spec(self, given: Mapping[str, Any]) -> Spec:
        kind = given["reward_type"]
        taken = _SETTINGS[kind] if kind == "accuracy" else (*_SETTINGS[kind], "base")
        for key in given:
            if key not in (*taken, "reward_type", "name"):
                raise ParameterError.of(key, given[key], f"{kind} accepts only {', '.join(taken)}: omit it")
        spec = {"reward_type": kind, **{key: given[key] for key in _SETTINGS[kind] if key in given}}
        if kind != "accuracy":
            spec["base"] = self.spec("base", given.get("base", "accuracy"))
        return spec

    def spec(self, key: str, name: str) -> Spec:
        """The spec of a reward by its name; `key` is where the call named it."""
        created = self._created()
        if name in self._registered:
            return {_REGISTERED: name}
        if name == "accuracy":
            return ACCURACY
        if name not in created:
            raise ParameterError.of(key, name, unknown("reward", name, self._known(created)))
        spec = created[name]
        for needed in functions_of([spec]):
            if needed not in self._registered:
                raise ParameterError.of(
                    key,
                    name,
                    f"it builds on the function {needed!r}, which is not registered in this process: call "
                    f"register_reward_function({needed!r}, ...) first",
                )
        return spec

    def functions(self, specs: Sequence[Spec]) -> dict[str, RewardFunction]:
        """The registered functions that rewards need."""
        return {name: self._registered[name] for name in functions_of(specs)}

    def names(self) -> list[dict[str, Any]]:
        """All rewards that have a name."""
        created = self._created()
        listed = [{"name": "accuracy", **ACCURACY}]
        listed += [{"name": name, **spec} for name, spec in created.items()]
        return listed + [{"name": name, "reward_type": _REGISTERED} for name in self._registered]

    def _known(self, created: Mapping[str, Spec]) -> list[str]:
        return ["accuracy", *created, *self._registered]

    def _created(self) -> dict[str, Spec]:
        return read_json(self._workspace.rewards) or {}


def build(spec: Spec, functions: Functions) -> RewardFunction:
    """The reward that a spec describes."""
    if _REGISTERED in spec:
        return functions[spec[_REGISTERED]]
    kind = spec.get("reward_type")
    if kind not in _SETTINGS:
        raise ConfigError(f"{spec!r:.80} does not describe a reward: create it again with create_reward")
    settings = {key: spec[key] for key in _SETTINGS[kind] if key in spec}
    if kind == "accuracy":
        return create_accuracy_reward(**settings)
    base = build(spec.get("base", ACCURACY), functions)
    return (create_length_penalty_reward if kind == "length_penalty" else create_step_reward)(base, **settings)


def functions_of(specs: Sequence[Spec]) -> list[str]:
    """The names of the registered functions in specs."""
    found = []
    for spec in specs:
        if _REGISTERED in spec:
            found.append(spec[_REGISTERED])
        elif isinstance(spec.get("base"), dict):
            found += functions_of([spec["base"]])
    return list(dict.fromkeys(found))


def _checked_name(given: Mapping[str, Any]) -> str:
    name = given.get("name", given["reward_type"])
    try:
        return check_name("reward", name)
    except ConfigError as error:
        raise ParameterError.of("name", name, str(error)) from None
