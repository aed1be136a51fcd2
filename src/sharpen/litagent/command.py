"""`CommandAgent`: any program as an agent, in any language.

Every rollout runs the program once. Task, prompts and model are in its environment (`command_environment.py`); its
reward comes from its output, from a call (`command_reports.py`), from its exit code, or from a function. However a
rollout ends, no process is left behind.
"""

import asyncio
import contextlib
import errno
import inspect
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..checks import check_choice, check_int, check_number
from ..emitter import emit_reward, operation
from ..errors import AgentError, AgentExitError, AgentResultError, AgentTimeoutError, ConfigError, InvalidInputError
from ..process.child import CommandProcess, Output, ProcessError
from ..semconv import AGL_MESSAGE, LightningSpanAttributes
from ..tracer.base import active_tracer, emit
from ..types import NamedResources, Rollout, RolloutRawResult
from .command_environment import TASK_FILE, CommandEnvironment, Inherited
from .litagent import LitAgent

if TYPE_CHECKING:
    from ..runner import Runner
    from ..trainer import Trainer

RewardSource = Literal["output", "call", "exit-code"]
RewardOption = RewardSource | Callable[["CommandResult"], Any]

SHELL_ERRORS = (126, 127)  # by which a shell says that it could not run something
_REWARD_LINE = re.compile(r"reward\s*[:=]\s*(\S.*)", re.IGNORECASE)
_START_HINTS = {
    errno.E2BIG: "; use inherit_env=False, or fewer or shorter prompts",
    errno.ENOEXEC: ": a script needs a first line such as #!/bin/sh",
}


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


class CommandAgent(LitAgent[Any]):
    """Runs a program once per rollout.

    Args:
        command: The program and its arguments, as a list.
        reward: Where the reward comes from: `"output"` (the last line `{"reward": 0.5}` or `reward: 0.5` of standard
            output), `"call"` (what the program sends to SHARPEN_REWARD_URL), `"exit-code"` (1.0 for 0, otherwise 0.0),
            or a function of the `CommandResult`. A reward sent by a call also counts, unless a later one replaces it.
        stdin: `"task"` passes the task as JSON on standard input too.
        cwd: Folder in which the program runs.
        env: Variables to add to its environment.
        inherit_env: True for all variables of the runner except its own (SHARPEN_*), False for the basic ones (PATH,
            HOME, the locale), or a list of the additional names to pass on.
        timeout_seconds: Limit for one run of the program, in addition to the rollout's own.
        grace_seconds: Time between asking the program to stop and killing it.
        exit_codes: Exit codes that count as success; any other fails the attempt (with `reward="exit-code"`, only a
            crash does).
        max_output_bytes: How much of each output is kept in the trace.
        trained_agents: Pattern for the names of agents whose LLM calls are trained; None for all.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        reward: RewardOption = "output",
        stdin: Literal["task"] | None = None,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        inherit_env: Inherited = True,
        timeout_seconds: float | None = None,
        grace_seconds: float = 5.0,
        exit_codes: Collection[int] = (0,),
        max_output_bytes: int = 256 * 1024,
        trained_agents: str | None = None,
    ) -> None:
        super().__init__(trained_agents=trained_agents)
        self.command = _check_command(command)
        self.reward = _check_reward(reward)
        self.cwd = None if cwd is None else Path(cwd)
        self.timeout_seconds = check_number("timeout_seconds", timeout_seconds, above=0, optional=True, unit="seconds")
        self.grace_seconds = check_number("grace_seconds", grace_seconds, at_least=0, unit="seconds")
        self.exit_codes = _check_exit_codes(exit_codes)
        self.max_output_bytes = check_int("max_output_bytes", max_output_bytes, at_least=1024)
        self._takes_stdin = check_choice("stdin", stdin, ("task",), optional=True) is not None
        self._environment = CommandEnvironment(inherit_env, env or {})

    def set_trainer(self, trainer: "Trainer") -> None:
        """Where the runners are on this machine too, a missing program is an error before the run begins."""
        if getattr(trainer.strategy, "has_runners_here", False):  # a strategy of the user's own may not say
            self.check()
        super().set_trainer(trainer)

    def set_runner(self, runner: "Runner[Any]") -> None:
        """A runner on whose machine the program is missing does not start: no rollout is spent on it."""
        self.check()
        super().set_runner(runner)

    def check(self) -> None:
        """Refuse a program that cannot be run on this machine."""
        _check_program(self.command[0], self.cwd, self._environment.base())

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        # Loaded with the first rollout: a web framework is needed where programs run, and nowhere else.
        from .command_reports import listening

        with (
            tempfile.TemporaryDirectory(prefix="sharpen-", ignore_cleanup_errors=True) as folder,
            operation(name=Path(self.command[0]).name) as step,  # without its arguments, which may hold a key
        ):
            async with listening() as url:
                environment = self._environment.of(task, resources, rollout, Path(folder), url)
                result, last_lines = await self._run(task, Path(folder), environment)
            step.set_attributes({"process.exit.code": result.exit_code})
            _check_exit(result.exit_code, self.exit_codes, self.reward, last_lines)
            return await _raw_result(result, self.reward)

    async def _run(self, task: Any, folder: Path, environment: Mapping[str, str]) -> tuple[CommandResult, str]:
        """Run the program; return how it ended, and the last lines of its standard error."""
        start = time.monotonic()
        try:
            process = self._start(folder, environment)
            try:
                code = await self._exit_code(process)
            finally:
                with contextlib.suppress(ProcessError):
                    await process.end_async()  # all that it has started has ended then
                _record("stdout", process.stdout)
                _record("stderr", process.stderr)
        except ProcessError as error:
            hint = _START_HINTS.get(getattr(error.__cause__, "errno", None) or 0, "")
            raise AgentError(f"{error}{hint}") from error
        stdout, stderr = process.stdout, process.stderr
        result = CommandResult(
            task=task,
            exit_code=code,
            stdout=stdout.text,
            stderr=stderr.text,
            stdout_bytes=stdout.size_bytes,
            stderr_bytes=stderr.size_bytes,
            stdout_cut_bytes=stdout.left_out_bytes,
            seconds=time.monotonic() - start,
        )
        return result, stderr.last_lines

    def _start(self, folder: Path, environment: Mapping[str, str]) -> CommandProcess:
        with open(folder / TASK_FILE if self._takes_stdin else os.devnull, "rb") as stdin:
            return CommandProcess(
                self.command,
                grace_seconds=self.grace_seconds,
                temporary_folder=folder,
                stdin=stdin,
                cwd=self.cwd,
                env=environment,
                max_output_bytes=self.max_output_bytes,
            )

    async def _exit_code(self, process: CommandProcess) -> int:
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return (await asyncio.wrap_future(process.exited)).code
        except TimeoutError as error:
            raise AgentTimeoutError(f"the program exceeded timeout_seconds={self.timeout_seconds:g}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.command!r})"


def _record(stream: str, output: Output) -> None:
    """Emit an output as a message; where content is not captured, only its size."""
    if not output.size_bytes:
        return
    tracer = active_tracer()
    sizes = {"stream": stream, "size_bytes": output.size_bytes, "cut_bytes": output.left_out_bytes}
    attributes: dict[str, Any] = {f"sharpen.command.{name}": value for name, value in sizes.items()}
    if tracer is None or tracer.capture_content:
        attributes[LightningSpanAttributes.MESSAGE_BODY.value] = output.text
    emit(AGL_MESSAGE, attributes)


# -- the result --------------------------------------------------------------------------------------


def _check_exit(code: int, allowed: Collection[int], source: RewardOption, last_lines: str) -> None:
    """An exit code that is not a success fails the attempt. Where it is the reward, only a crash does."""
    is_reward = source == "exit-code" and code >= 0 and code not in SHELL_ERRORS
    if code in allowed or is_reward:
        return
    how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
    words = " and printed nothing to stderr"
    if last_lines:  # the last one first, as one line is all that lists of failures show
        *before, last = last_lines.splitlines()
        words = f": {last}" + (f"\nthe last lines of its standard error:\n{last_lines}" if before else "")
    raise AgentExitError(f"the program {how}{words}")


async def _raw_result(result: CommandResult, source: RewardOption) -> RolloutRawResult:
    """Return the reward in the form in which an agent returns it; None where there is none."""
    if source == "call":
        return None  # whatever was sent is in the trace
    if source == "exit-code":
        return float(result.exit_code == 0)
    if source == "output":
        return _reward_span(*_printed_reward(result), what="the program printed")
    assert callable(source)
    given = source(result) if inspect.iscoroutinefunction(source) else await asyncio.to_thread(source, result)
    return _reward_span(await given if inspect.isawaitable(given) else given, what="the reward function returned")


def _reward_span(reward: Any, primary_key: str | None = None, *, what: str) -> RolloutRawResult:
    if reward is None:
        return None
    try:
        return [emit_reward(reward, primary_key=primary_key, propagate=False)]
    except InvalidInputError as error:
        raise AgentResultError(f"{what} an invalid reward: {error}") from None


def _printed_reward(result: CommandResult) -> tuple[Any, str | None]:
    """Return the reward in the last line that has one, and its primary dimension; (None, None) without any."""
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
    if match := _REWARD_LINE.fullmatch(line):
        try:
            return float(match[1]), None
        except ValueError:
            return match[1], None  # refused with its value where it becomes a reward
    try:
        said = json.loads(line) if line.startswith("{") and '"reward"' in line else None
    except (ValueError, RecursionError):
        return None  # a line of the program's own
    return (said["reward"], said.get("primary_key")) if isinstance(said, dict) and "reward" in said else None


# -- options -----------------------------------------------------------------------------------------


def _check_command(command: Any) -> list[str]:
    if isinstance(command, str | bytes) or not isinstance(command, Sequence):
        raise ConfigError(
            f"command is {command!r}: use a list, such as ['python', 'agent.py']; for a shell command use "
            "['sh', '-c', '…']"
        )
    if not command:
        raise ConfigError("command is empty: pass the program and its arguments")
    return [_check_word(number, each) for number, each in enumerate(command)]


def _check_word(number: int, given: Any) -> str:
    word = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(word, str) or "\0" in word or (number == 0 and not word):
        raise ConfigError(f"command[{number}] is {given!r}: use a str")
    return word


def _check_reward(reward: Any) -> RewardOption:
    if callable(reward) or reward in get_args(RewardSource):
        return reward  # type: ignore[no-any-return]
    sources = ", ".join(map(repr, get_args(RewardSource)))
    raise ConfigError(f"reward is {reward!r}: use {sources}, or a function of a CommandResult")


def _check_exit_codes(codes: Any) -> frozenset[int]:
    if isinstance(codes, str | bytes) or not isinstance(codes, Collection) or not codes:
        raise ConfigError(f"exit_codes is {codes!r}: use a list of numbers, such as [0]")
    return frozenset(check_int("exit_codes", code, at_least=0, at_most=255) for code in codes)


def _check_program(program: str, cwd: Path | None, environment: Mapping[str, str]) -> None:
    if cwd is not None and not cwd.is_dir():
        raise ConfigError(f"cwd is {str(cwd)!r}, which is not a folder on this machine")
    if os.sep not in program:
        if shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
            raise ConfigError(
                f"command[0] is {program!r}, which is not on this machine's PATH: install it, or use its full path"
            )
        return
    path = (cwd or Path()) / program
    if not path.is_file():
        raise ConfigError(
            f"command[0] is {program!r}, but the file {str(path.absolute())!r} does not exist: use the program's path"
        )
    if not os.access(path, os.X_OK):
        raise ConfigError(
            f"command[0] is {program!r}, which is not executable: run chmod +x on it, or put its interpreter first"
        )
