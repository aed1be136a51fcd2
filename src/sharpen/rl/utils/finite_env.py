"""Finite vector environments, under the path that Qlib has for them."""

from ..finite_env import FiniteDummyVectorEnv, FiniteEnvType, FiniteVectorEnv, vectorize_env
from ..spaces import check_nan_observation, generate_nan_observation
from ..worker_env import FiniteShmemVectorEnv, FiniteSubprocVectorEnv

__all__ = [
    "FiniteDummyVectorEnv",
    "FiniteEnvType",
    "FiniteShmemVectorEnv",
    "FiniteSubprocVectorEnv",
    "FiniteVectorEnv",
    "check_nan_observation",
    "generate_nan_observation",
    "vectorize_env",
]
