"""The module path of Agent-lightning; import the names from `sharpen.emitter`.

The decorator `sharpen.reward` has the same name as this module. Importing the module replaces the decorator, so the
module can be called like the decorator.
"""

import sys
import warnings
from types import ModuleType
from typing import Any

from .emitter.reward import (
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    reward,
)

__all__ = [
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "reward",
]

warnings.warn(
    "the module sharpen.reward is deprecated: import its functions from sharpen.emitter, and the decorator with "
    "`from sharpen import reward`",
    DeprecationWarning,
    stacklevel=2,
)


class _Decorator(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return reward(*args, **kwargs)


sys.modules[__name__].__class__ = _Decorator
