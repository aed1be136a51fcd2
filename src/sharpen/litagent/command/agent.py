"""`CommandAgent`: any program as an agent, in any language.

Every rollout runs the program once. Task, prompts and model are in its environment; its reward comes from its output,
from a call, from its exit code, or from a function. Whatever happens, no process is left behind.
"""

import asyncio
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...checks import check_number
from ...emitter import operation
from ...emitter.emit import emit
from ...errors import AgentTimeoutError, ConfigError
from ...semconv import AGL_MESSAGE, LightningSpanAttributes
from ...tracer.base import active_tracer
from ...types import NamedResources, Rollout, RolloutRawResult
from ..base import LitAgent
from .environment import TASK_FILE, Environment, Inherited
from .output import Output, check_max_bytes
from .process import Process
from .program import check_command, check_program
from .reports import Reports
from .result import CommandResult, RewardOption, check_exit, check_reward, raw_result

if TYPE_CHECKING:
    from ...runner import Runner
    from ...trainer import Trainer

_BODY = LightningSpanAttributes.MESSAGE_BODY.value


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
        self.command = check_command(command)
        self.reward = check_reward(reward)
        self.cwd = None if cwd is None else Path(cwd)
        self.timeout_seconds = _check_timeout(timeout_seconds)
        self.grace_seconds = check_number("grace_seconds", grace_seconds, at_least=0, unit="seconds")
        self.exit_codes = _check_codes(exit_codes)
        self.max_output_bytes = check_max_bytes(max_output_bytes)
        self._takes_stdin = _check_stdin(stdin)
        self._environment = Environment(inherit_env, env or {})

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
        check_program(self.command[0], self.cwd, self._environment.base())

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        # Loaded with the first rollout: a web framework is needed where programs run, and nowhere else.
        from .listener import listening

        with (
            tempfile.TemporaryDirectory(prefix="sharpen-", ignore_cleanup_errors=True) as folder,
            operation(name=Path(self.command[0]).name) as step,  # without its arguments, which may hold a key
        ):
            async with listening(Reports()) as url:
                environment = self._environment.of(task, resources, rollout, Path(folder), url)
                result, last_lines = await self._run(task, Path(folder), environment)
            step.set_attributes({"process.exit.code": result.exit_code})
            check_exit(result, self.exit_codes, self.reward, last_lines)
            return await raw_result(result, self.reward)

    async def _run(self, task: Any, folder: Path, environment: Mapping[str, str]) -> tuple[CommandResult, str]:
        """How the program ended, and its last words."""
        process = Process(self.command, grace_seconds=self.grace_seconds, max_output_bytes=self.max_output_bytes)
        began = time.monotonic()
        try:
            stdin = folder / TASK_FILE if self._takes_stdin else None
            await process.start(folder=folder, stdin=stdin, cwd=self.cwd, env=environment)
            code = await self._in_time(process)
        finally:
            await process.end()
            _record("stdout", process.stdout)
            _record("stderr", process.stderr)
        outcome = CommandResult(
            task=task,
            exit_code=code,
            stdout=process.stdout.text,
            stderr=process.stderr.text,
            stdout_bytes=process.stdout.size_bytes,
            stderr_bytes=process.stderr.size_bytes,
            stdout_cut_bytes=process.stdout.cut_bytes,
            seconds=time.monotonic() - began,
        )
        return outcome, process.stderr.last_lines

    async def _in_time(self, process: Process) -> int:
        try:
            async with asyncio.timeout(self.timeout_seconds) as limit:
                return await process.wait()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise AgentTimeoutError(f"the program exceeded timeout_seconds={self.timeout_seconds:g}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.command!r})"


def _record(stream: str, output: Output) -> None:
    """An output as a message in the trace; where content is not to be captured, only its size."""
    if not output.size_bytes:
        return
    tracer = active_tracer()
    about = {"stream": stream, "size_bytes": output.size_bytes, "cut_bytes": output.cut_bytes}
    attributes: dict[str, Any] = {f"sharpen.command.{name}": value for name, value in about.items()}
    if tracer is None or tracer.capture_content:
        attributes[_BODY] = output.text
    emit(AGL_MESSAGE, attributes)


def _check_timeout(value: Any) -> float | None:
    if value == 0 and value is not False:
        raise ConfigError("timeout_seconds is 0, which no program can meet: use more, or None for no limit")
    seconds: float | None = check_number("timeout_seconds", value, at_least=0, optional=True, unit="seconds")
    return seconds


def _check_codes(codes: Any) -> frozenset[int]:
    if isinstance(codes, str | bytes) or not isinstance(codes, Collection) or not codes:
        raise ConfigError(f"exit_codes is {codes!r}: use a list of numbers, such as [0]")
    for code in codes:
        if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code <= 255:
            raise ConfigError(f"exit_codes holds {code!r}: an exit code is a number from 0 to 255")
    return frozenset(codes)


def _check_stdin(stdin: Any) -> bool:
    if stdin not in (None, "task"):
        raise ConfigError(f"stdin is {stdin!r}: use 'task', or None for empty input")
    return stdin is not None
