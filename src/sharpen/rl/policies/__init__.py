"""Policies that learn: PPO, DQN and SAC, each in one file, and adapters for policies of other libraries.

torch is loaded when the first of these names is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters import (
        ModulePolicy as ModulePolicy,
        SB3Policy as SB3Policy,
        Tianshou04Policy as Tianshou04Policy,
    )
    from .dqn import DQN as DQN
    from .networks import MLP as MLP
    from .ppo import PPO as PPO, QlibPPO as QlibPPO
    from .replay import ReplayBuffer as ReplayBuffer
    from .sac import SAC as SAC

_MODULE_OF = {
    "DQN": "dqn",
    "MLP": "networks",
    "ModulePolicy": "adapters",
    "PPO": "ppo",
    "QlibPPO": "ppo",
    "ReplayBuffer": "replay",
    "SAC": "sac",
    "SB3Policy": "adapters",
    "Tianshou04Policy": "adapters",
}
__all__ = [
    "DQN",
    "MLP",
    "PPO",
    "SAC",
    "ModulePolicy",
    "ReplayBuffer",
    "SB3Policy",
    "Tianshou04Policy",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from ...errors import MissingExtraError

    try:
        import_module("torch")
    except ImportError as error:
        raise MissingExtraError.of("torch", extra="rl", feature=f"sharpen.rl.{name}") from error
    value = globals()[name] = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    return value
