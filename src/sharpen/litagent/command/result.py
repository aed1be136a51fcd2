"""What a program left behind, and the reward in it."""

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ...emitter import emit_reward
from ...errors import AgentExitError, AgentResultError, ConfigError, InvalidInputError
from ...types import RolloutRawResult

RewardSource = Literal["output", "call", "exit-code"]
RewardOption = RewardSource | Callable[["CommandResult"], Any]
SHELL_ERRORS = (126, 127)  # by which a shell says that it could not run something
_LINE = re.compile(r"reward\s*[:=]\s*(\S.*)", re.IGNORECASE)


@dataclass(frozen=True)
class CommandResult:
    """How a program ended, and what it wrote. Of a long output the middle is left out."""

    task: Any
    exit_code: int
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    stdout_cut_bytes: int
    seconds: float


def check_reward(reward: Any) -> RewardOption:
    if callable(reward) or reward in get_args(RewardSource):
        return reward  # type: ignore[no-any-return]
    sources = ", ".join(map(repr, get_args(RewardSource)))
    raise ConfigError(f"reward is {reward!r}: use {sources}, or a function of a CommandResult")


def check_exit(result: CommandResult, allowed: frozenset[int], source: RewardOption, last_lines: str) -> None:
    """An exit code that is no success fails the attempt. Where it is the reward, only a crash does."""
    code = result.exit_code
    is_reward = source == "exit-code" and code >= 0 and code not in SHELL_ERRORS
    if code in allowed or is_reward:
        return
    how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
    raise AgentExitError(f"the program {how}{_last_words(last_lines)}")


def _last_words(last_lines: str) -> str:
    """The last line first, as one line is all that lists of failures show."""
    if not last_lines:
        return " and printed nothing to stderr"
    lines = last_lines.splitlines()
    return f": {lines[-1]}" + (f"\nthe last lines of its standard error:\n{last_lines}" if len(lines) > 1 else "")


async def raw_result(result: CommandResult, source: RewardOption) -> RolloutRawResult:
    """The reward of a rollout, in the form in which an agent returns it; None where there is none."""
    if source == "call":
        return None  # whatever was called stands in the trace
    if source == "exit-code":
        return float(result.exit_code == 0)
    if source == "output":
        return _raw(*printed_reward(result), what="the program printed")
    assert callable(source)
    given = source(result) if inspect.iscoroutinefunction(source) else await asyncio.to_thread(source, result)
    return _raw(await given if inspect.isawaitable(given) else given, None, what="the reward function returned")


def _raw(reward: Any, primary_key: str | None, *, what: str) -> RolloutRawResult:
    if reward is None:
        return None
    try:
        return [emit_reward(reward, primary_key=primary_key, propagate=False)]
    except InvalidInputError as error:
        raise AgentResultError(f"{what} an invalid reward: {error}") from None


def printed_reward(result: CommandResult) -> tuple[Any, str | None]:
    """The reward in the last line that has one, and the name of its primary dimension; (None, None) without any."""
    for line in reversed(result.stdout.splitlines()):
        if (found := _reward_in(line.strip())) is not None:
            return found
    if result.stdout_cut_bytes:
        raise AgentResultError(
            f"the program printed {result.stdout_bytes} bytes, of which the middle {result.stdout_cut_bytes} were "
            "dropped, and no reward at either end: print the reward last, or raise max_output_bytes"
        )
    return None, None


def _reward_in(line: str) -> tuple[Any, str | None] | None:
    if match := _LINE.fullmatch(line):
        return _number(match[1]), None
    if not line.startswith("{") or '"reward"' not in line:
        return None
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None  # a line of the program's own
    return (said["reward"], said.get("primary_key")) if isinstance(said, Mapping) and "reward" in said else None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # refused with its own words where it becomes a reward
