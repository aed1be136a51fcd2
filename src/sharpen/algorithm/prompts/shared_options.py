"""The options that every search over prompts passes on to `PromptOptimiser`, and what is said of an unknown one."""

import inspect
import os
from collections.abc import Iterable
from typing import TypedDict

from ...checks import did_you_mean
from ...errors import ConfigError


class SharedOptions(TypedDict, total=False):
    """What each of them means is said at `PromptOptimiser`."""

    train_split: float
    resource_name: str | None
    seed: int | None
    perfect_reward: float | None
    model: str | os.PathLike[str] | None
    max_response_tokens: int


def check_options(search: object, kind: type, given: Iterable[str]) -> None:
    """Refuse what no search of this kind has, with the nearest name that it has."""
    known = [*_names_of(kind), *SharedOptions.__annotations__]
    for name in given:
        if name not in known:
            raise ConfigError(f"{type(search).__name__} has no option {name!r}.{did_you_mean(name, known)}")


def _names_of(kind: type) -> list[str]:
    found = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    return [each.name for each in found if each.kind is not each.VAR_KEYWORD]
