"""Calling a reward function and trusting its numbers.

A reward is `f(completions, **columns) -> list[float]`, sync or async. `RewardRunner` calls it with the columns that it
takes, within a time, and gives back one finite number for each completion, or an error that names reward and row.
Async rewards of one process share one event loop on a thread of its own, so that their clients live from call to call.
"""

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

from ..checks import is_number
from ..errors import ConfigError, describe
from .completions import Completion, completion_text, prompt_text
from .errors import RewardError, RewardTimeoutError

T = TypeVar("T")
Rewards = Sequence[float | None]
RewardFunction = Callable[..., Rewards | Awaitable[Rewards]]

# What TRL gives to rewards beside the columns of the data set.
_NO_COLUMNS = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})
_SECONDS_TO_FIND_A_ROW = 10.0
_SECONDS_TO_CANCEL = 1.0
_WIDTH_OF_AN_EXCERPT = 80


class RewardRunner:
    """A reward function in safe hands; called like the function itself, also by TRL.

    With `may_skip`, None stands for "this reward does not judge that row", as in TRL with several rewards. `unit` is
    what errors count: the rows of a data set, or such as "completion of the batch".
    """

    def __init__(
        self,
        reward_fn: RewardFunction,
        *,
        timeout_seconds: float | None = None,
        may_skip: bool = False,
        unit: str = "row",
    ) -> None:
        if not callable(reward_fn):
            raise ConfigError(
                f"a reward is {reward_fn!r}: pass a function f(completions, **columns) -> list of numbers"
            )
        if timeout_seconds is not None and (not is_number(timeout_seconds) or timeout_seconds <= 0):
            raise ConfigError(
                f"timeout_seconds of a reward is {timeout_seconds!r}: use a number above 0, or None for no timeout"
            )
        self.reward_fn = reward_fn
        self.timeout_seconds = timeout_seconds
        self.may_skip = may_skip
        self.unit = unit
        self.__name__ = reward_name(reward_fn)

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        try:
            return self._checked(self._result(completions, columns), len(completions))
        except RewardError as error:
            error.placed(self.unit, _excerpt(completions, columns, error.row))
            raise

    def _result(self, completions: Sequence[Completion], columns: Mapping[str, Any]) -> Rewards:
        try:
            return self._call(completions, columns)
        except RewardError:
            raise
        except Exception as error:
            row = self._failing_row(completions, columns, error)
            raise RewardError.of(self.__name__, describe(error), row=row) from error

    def _call(self, completions: Sequence[Completion], columns: Mapping[str, Any]) -> Rewards:
        call = partial(call_reward, self.reward_fn, completions, columns)
        seconds = self.timeout_seconds
        try:
            return _settled(call() if seconds is None else _in_time(call, seconds), seconds)
        except _TimeUpError:
            problem = f"took more than {seconds:g} s for {len(completions)} completions"
            raise RewardTimeoutError.of(self.__name__, problem) from None

    def _failing_row(
        self, completions: Sequence[Completion], columns: Mapping[str, Any], error: Exception
    ) -> int | None:
        """The first row that fails alone as the whole batch did. Some rewards need the batch: then there is none."""
        deadline = time.monotonic() + _SECONDS_TO_FIND_A_ROW
        for row in range(len(completions)):
            if time.monotonic() > deadline:
                return None
            try:
                self._call(completions[row : row + 1], _one_row(columns, row, len(completions)))
            except Exception as alone:  # noqa: BLE001 - whatever the user's function raises
                if type(alone) is type(error):
                    return row
        return None

    def _checked(self, result: Rewards, count: int) -> list[float | None]:
        if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
            raise RewardError.of(self.__name__, f"returned {result!r:.80}: return a list of {count} numbers")
        values = list(result)
        if len(values) != count:
            raise RewardError.of(
                self.__name__, f"returned {len(values)} rewards for {count} completions: return one for each"
            )
        return [self._number(value, row) for row, value in enumerate(values)]

    def _number(self, value: Any, row: int) -> float | None:
        if value is None and self.may_skip:
            return None
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise RewardError.of(self.__name__, f"returned {value!r:.80}, which is not a finite number", row=row)
        return number


def score(
    reward_fn: RewardFunction,
    completions: Sequence[Completion],
    columns: Mapping[str, Any] | None = None,
    *,
    timeout_seconds: float | None = None,
) -> list[float]:
    """One reward for each completion. `columns` holds a list for each column of the data set, row by row."""
    rewards = RewardRunner(reward_fn, timeout_seconds=timeout_seconds)(completions, **(columns or {}))
    return [reward for reward in rewards if reward is not None]


def reward_name(reward_fn: RewardFunction) -> str:
    """The name of a reward in metrics."""
    if isinstance(reward_fn, partial):
        return reward_name(reward_fn.func)
    name = getattr(reward_fn, "__name__", None)
    if not isinstance(name, str) or not name:
        name = type(reward_fn).__name__
    return "reward" if name == "<lambda>" else name


def reward_runners(
    reward_fns: RewardFunction | Sequence[RewardFunction], *, timeout_seconds: float | None = None, unit: str = "row"
) -> list[RewardRunner]:
    """A runner for each of one or several rewards, with names that are all different. Of several, one may skip rows."""
    given = list(reward_fns) if isinstance(reward_fns, list | tuple) else [cast(RewardFunction, reward_fns)]
    if not given:
        raise ConfigError("the list of rewards is empty: pass at least one function f(completions, **columns)")
    runners = [
        RewardRunner(each, timeout_seconds=timeout_seconds, may_skip=len(given) > 1, unit=unit) for each in given
    ]
    for runner, name in zip(runners, _different([runner.__name__ for runner in runners]), strict=True):
        runner.__name__ = name
    return runners


def _different(wanted: Sequence[str]) -> list[str]:
    """The names, numbered where they repeat: `accuracy`, `accuracy_2`."""
    names: list[str] = []
    for name in wanted:
        number = 1
        while (numbered := name if number == 1 else f"{name}_{number}") in names:
            number += 1
        names.append(numbered)
    return names


# -- calling -----------------------------------------------------------------------------------------


def call_reward(
    reward_fn: RewardFunction, completions: Sequence[Completion], columns: Mapping[str, Any]
) -> Rewards | Awaitable[Rewards]:
    """Call a reward with the columns that it takes."""
    try:
        parameters = list(inspect.signature(reward_fn).parameters.values())
    except (TypeError, ValueError):  # Written in C.
        return reward_fn(completions, **columns)
    named = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    is_by_name = "completions" in named or (bool(parameters) and parameters[0].name in columns)
    _check_columns(reward_fn, parameters if is_by_name else parameters[1:], columns)
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        columns = {name: values for name, values in columns.items() if name in named}
    return reward_fn(**{"completions": completions, **columns}) if is_by_name else reward_fn(completions, **columns)


def _check_columns(
    reward_fn: RewardFunction, parameters: Sequence[inspect.Parameter], columns: Mapping[str, Any]
) -> None:
    for each in parameters:
        is_required = each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        if is_required and each.name != "completions" and each.name not in columns:
            raise missing_column(reward_name(reward_fn), each.name, columns)


def missing_column(reward: str, column: str, columns: Mapping[str, Any]) -> RewardError:
    """The error of a reward that needs a column which is not there."""
    has = ", ".join(sorted(set(columns) - _NO_COLUMNS)) or "none"
    return RewardError.of(reward, f"needs the column {column!r}; the columns are: {has}")


def _one_row(columns: Mapping[str, Any], row: int, count: int) -> dict[str, Any]:
    """The columns of one row; what is not one value a row (a trainer's state) stays as it is."""
    return {
        name: values[row : row + 1] if isinstance(values, list | tuple) and len(values) == count else values
        for name, values in columns.items()
    }


def _excerpt(completions: Sequence[Completion], columns: Mapping[str, Any], row: int | None) -> str:
    if row is None or not 0 <= row < len(completions):
        return ""
    prompts = columns.get("prompts")
    has_prompt = isinstance(prompts, list | tuple) and row < len(prompts)
    shown = {"completion": _beginning(completion_text, completions[row])}
    shown |= {"prompt": _beginning(prompt_text, prompts[row])} if prompts and has_prompt else {}
    return f" ({', '.join(f'{name}: {text}' for name, text in shown.items())})"


def _beginning(text_of: Callable[[Any], str], value: Any) -> str:
    try:
        return repr(text_of(value)[:_WIDTH_OF_AN_EXCERPT])
    except (TypeError, LookupError):
        return f"{value!r:.80}"


# -- time --------------------------------------------------------------------------------------------


class _TimeUpError(Exception):
    pass


def _in_time(call: Callable[[], T], seconds: float) -> T:
    """Call on another thread. One that does not come back in time is left to itself: Python cannot stop it."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where the caller waits
            outcome.set_exception(error)

    threading.Thread(target=copy_context().run, args=(work,), name="sharpen-reward", daemon=True).start()
    wait([outcome], seconds)
    if not outcome.done():
        raise _TimeUpError
    return outcome.result()


def _settled(result: Rewards | Awaitable[Rewards], seconds: float | None) -> Rewards:
    if not inspect.isawaitable(result):
        return result
    outcome = asyncio.run_coroutine_threadsafe(_awaited(result, seconds), _RewardLoop.get())
    wait([outcome], None if seconds is None else seconds + _SECONDS_TO_CANCEL)
    if not outcome.done():
        _RewardLoop.leave()
        raise _TimeUpError
    return outcome.result()


async def _awaited(result: Awaitable[T], seconds: float | None) -> T:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await result
    except TimeoutError:
        if limit.expired():
            raise _TimeUpError from None
        raise


class _RewardLoop:
    """The event loop of async rewards."""

    _lock = threading.Lock()
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    @classmethod
    def get(cls) -> asyncio.AbstractEventLoop:
        with cls._lock:
            # After a fork the thread is gone and the loop with it.
            if cls._loop is None or cls._thread is None or not cls._thread.is_alive():
                cls._loop = asyncio.new_event_loop()
                cls._thread = threading.Thread(target=cls._loop.run_forever, name="sharpen-reward-loop", daemon=True)
                cls._thread.start()
            return cls._loop

    @classmethod
    def leave(cls) -> None:
        """Use another loop from now on: a call that blocks holds this one."""
        with cls._lock:
            cls._loop = cls._thread = None
