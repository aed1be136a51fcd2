"""Checks of the settings of a search: what is wrong is said where the search is made, and not in a run."""

import math
from typing import get_args

from ...errors import ConfigError
from .promotion import Promotion


def check_search(
    timeout: float, promotion: str, train_split: float, seed: int | None, perfect_reward: float | None
) -> None:
    """Those that every search has."""
    if not _is_number(timeout) or not timeout > 0:
        raise ConfigError(f"rollout_batch_timeout is {timeout!r}: use a number of seconds above 0")
    if promotion not in get_args(Promotion):
        raise ConfigError(f"promotion is {promotion!r}: use one of {', '.join(get_args(Promotion))}")
    if not _is_number(train_split) or not 0 < train_split < 1:
        raise ConfigError(f"train_split is {train_split!r}: use the fraction of the tasks to train on, between 0 and 1")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ConfigError(f"seed is {seed!r}: use a whole number, or None for a different one in every run")
    if perfect_reward is not None and not (_is_number(perfect_reward) and math.isfinite(perfect_reward)):
        raise ConfigError(f"perfect_reward is {perfect_reward!r}: use the highest possible reward, a finite number")


def check_models(**models: str) -> None:
    for name, value in models.items():
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{name} is {value!r}: use the name of a model")


def check_temperature(name: str, value: float) -> None:
    if not _is_number(value) or not 0 <= value <= 2:
        raise ConfigError(f"{name} is {value!r}: use a number from 0 to 2")


def check_client(name: str, client: object) -> None:
    """One that is given; None is for one that is chosen."""
    create = getattr(getattr(getattr(client, "chat", None), "completions", None), "create", None)
    if client is not None and (create is None or type(client).__name__ in ("OpenAI", "AzureOpenAI")):
        raise ConfigError(f"{name} is of type {type(client).__name__}: pass an openai.AsyncOpenAI")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
