"""The keys of a configuration of kind `agents`: an agent, its tasks, and every keyword of `Trainer`."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from ...components.paths import is_address
from ...errors import ConfigError
from ...secrets import shown
from ...types import RolloutConfig
from .imports import is_import_path

if TYPE_CHECKING:
    from .train_config import TrainConfig

COMPONENTS = (
    "tracer",
    "adapter",
    "store",
    "runner",
    "strategy",
    "algorithm",
    "llm_proxy",
    "hooks",
    "callbacks",
    "loggers",
)
DATASETS = ("train_dataset", "val_dataset")
_DEFAULTS = {
    "adapter": "TracerTraceToTriplet",
    "runner": "LitAgentRunner",
    "strategy": "ClientServerExecutionStrategy",
    "llm_proxy": "LLMProxy",
}
"""The component that a mapping without a type configures."""
_ADDRESSES = ("store", "llm_proxy")
"""Components that may run elsewhere: their address is a spec, too."""
_LISTS = ("algorithm", "hooks", "callbacks", "loggers")


def trainer_keys() -> list[str]:
    """Return the keywords of `Trainer` without the deprecated ones, which no configuration has used."""
    from ...compat.trainer import OLD_OPTIONS
    from ...trainer import Trainer

    return [name for name in inspect.signature(Trainer).parameters if name not in OLD_OPTIONS]


def check(config: "TrainConfig") -> None:
    """Refuse mistakes that can be found without building anything."""
    values, specs = config.values, config.specs
    config.check_keys(["agent", *DATASETS, *trainer_keys()])
    _check_agent(config)
    for key in DATASETS:
        config.tasks.check(values.get(key), (key,))
    for key in COMPONENTS:
        spec = values.get(key)
        if isinstance(spec, list) and key not in _LISTS:
            raise ConfigError(f"{specs.at((key,))} is a list, but a run has only one {key}: choose one")
        if key in _ADDRESSES and is_address(spec):
            continue
        name = _DEFAULTS.get(key)
        is_plain = isinstance(spec, Mapping) and "type" not in spec and name is not None
        specs.check(spec, (key,), default=specs.find(name, (key,)) if is_plain and name is not None else None)
    config.resources()
    _check_rollout_config(config)


def _check_agent(config: "TrainConfig") -> None:
    agent = config.values.get("agent")
    if agent is None or is_import_path(agent):
        return
    if isinstance(agent, Mapping):
        config.specs.check(agent, ("agent",))
        return
    raise ConfigError(f"{config.specs.at(('agent',))} is {shown(agent)}: write 'file.py:name' or 'module:name'")


def _check_rollout_config(config: "TrainConfig") -> None:
    given = config.values.get("rollout_config")
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ConfigError(f"{config.specs.at(('rollout_config',))} is {shown(given)}: use a mapping")
    known = [each.name for each in msgspec.structs.fields(RolloutConfig)]
    config.specs.check_names(given, known, ("rollout_config",), owner="rollout_config")
