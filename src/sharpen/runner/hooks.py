"""Calling a user's hooks: with the keywords that they take, and never fatal."""

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

from ..types import Hook

log = logging.getLogger(__name__)
Moment = Literal["on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"]


class Hooks:
    """The hooks of a runner. Those that a hook does not override cost nothing."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.errors = 0
        self._by_moment: dict[str, list[Callable[..., Any]]] = {}
        for moment in ("on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"):
            self._by_moment[moment] = [getattr(hook, moment) for hook in hooks if _has_own(hook, moment)]

    async def call(self, moment: Moment, **known: Any) -> None:
        """Call every hook of this moment in order; what one raises is logged and counted."""
        for function in self._by_moment[moment]:
            try:
                answer = function(**_wanted(function, known))
                if inspect.isawaitable(answer):
                    await answer
            except Exception:  # a user's code, which must not end the attempt
                self.errors += 1
                log.exception("hook %s.%s failed; the attempt goes on", type(_owner(function)).__name__, moment)


def _owner(function: Callable[..., Any]) -> object:
    return getattr(function, "__self__", function)


def _has_own(hook: object, moment: str) -> bool:
    own = getattr(type(hook), moment, None)
    return callable(getattr(hook, moment, None)) and own is not getattr(Hook, moment)


def _wanted(function: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    names, takes_all = _parameters(getattr(function, "__func__", function))
    return known if takes_all else {name: value for name, value in known.items() if name in names}


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(function).parameters
    return frozenset(parameters), any(each.kind is each.VAR_KEYWORD for each in parameters.values())
