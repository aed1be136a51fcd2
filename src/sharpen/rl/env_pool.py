"""`EnvPool`: the vector environment of a trainer, kept as long as its parts stay the same."""

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

from .env_wrapper import EnvParts
from .finite_env import FiniteEnvType, FiniteVectorEnv, vectorize_env
from .logging import LogWriter
from .vector_simulator import FiniteVectorSimulatorEnv, VectorSimulator

PART_BYTES = 1 << 20  # parts above this are compared by identity only


class HasParts(Protocol):
    """What an environment is made of; a vessel has it."""

    simulator_fn: Any
    state_interpreter: Any
    action_interpreter: Any
    reward: Any


class EnvPool:
    """Starting workers is slow, so they are started once: seeds reach them with each episode.

    Where somebody has changed an interpreter or the reward between two collects, the workers are made anew.
    """

    def __init__(self, env_type: FiniteEnvType, concurrency: int) -> None:
        self._env_type, self._concurrency = env_type, concurrency
        self._env: FiniteVectorEnv | None = None
        self._made_of: tuple[Any, ...] = ()

    def env_for(self, vessel: HasParts, loggers: Sequence[LogWriter]) -> FiniteVectorEnv:
        """The environment of these parts, with these loggers."""
        if self._env is None or self._made_of != _print_of(vessel):
            self.close()
            self._env = self._make(vessel)
            self._made_of = _print_of(vessel)
        self._env.loggers = list(loggers)
        return self._env

    def _make(self, vessel: HasParts) -> FiniteVectorEnv:
        simulator_fn = vessel.simulator_fn
        if isinstance(simulator_fn, type) and issubclass(simulator_fn, VectorSimulator):
            return FiniteVectorSimulatorEnv(simulator_fn, self._concurrency)
        parts = EnvParts(simulator_fn, vessel.state_interpreter, vessel.action_interpreter, vessel.reward)
        return vectorize_env(parts, self._env_type, self._concurrency)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


def _print_of(vessel: HasParts) -> tuple[Any, ...]:
    """What tells one set of parts from another."""
    parts = (vessel.state_interpreter, vessel.action_interpreter, vessel.reward)
    return (id(vessel.simulator_fn), *map(id, parts), _digest(parts))


def _digest(parts: tuple[Any, ...]) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        data: bytes = cloudpickle.dumps(parts)
    except Exception:  # noqa: BLE001 - parts that cannot be pickled can still be used in this process
        return b""
    return hashlib.sha256(data).digest() if len(data) <= PART_BYTES else b""
