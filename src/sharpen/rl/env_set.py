"""Several environments in one process, stepped together: actions come from rows of arrays and results go into them.

This is the only place where environments are called, in the trainer's process and in workers alike. What a step
reports besides its row (logs, infos, the end of an episode) is a `Note`; most steps have none. Rows are in ordinary
memory, or in memory that the trainer and its workers share, which has no name and is freed with the last process.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ..errors import EpisodeError
from ..loggers import LogLevel
from .env_wrapper import EnvWrapper
from .logging import Logs
from .reward import as_number
from .seed import Begin
from .spaces import empty_batch, row_writer
from .trees import Array, Tree, leaves, map_tree

PERIODIC = int(LogLevel.PERIODIC)
SHOWN = 500  # characters of an initial state in an error
ALIGNMENT = 64  # bytes: no two arrays of shared rows are in one cache line


class Note(NamedTuple):
    """What an environment reports besides its row."""

    slot: int
    exhausted: bool = False
    info: Any = None
    rewards: list[float] | None = None  # of a finished episode
    logs: list[tuple[int, Logs]] = []  # step and logs, where a step logged more than its reward


class Settings(NamedTuple):
    """How a collection is logged."""

    min_loglevel: int
    each_step: bool  # infos at every step, and not only at an episode's end


class _Slot:
    __slots__ = ("begin", "env", "is_wrapper", "logs", "rewards", "step")

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self.step: Callable[[Any], tuple[Any, Any, bool, bool, Any]] = env.step
        self.is_wrapper = isinstance(env, EnvWrapper)
        self.begin: Begin | None = None
        self.rewards: list[float] = []
        self.logs: list[tuple[int, Logs]] = []


class EnvSet:
    """The environments of one process.

    `caught` are the errors that become an `EpisodeError`. A worker adds `SystemExit`; in the user's own process that
    may come from a signal and has to end the program.
    """

    def __init__(
        self,
        factories: Iterable[Callable[[], gym.Env[Any, Any]]],
        rows: "Rows",
        *,
        caught: tuple[type[BaseException], ...] = (Exception,),
    ) -> None:
        self._caught = caught
        self._slots = [_Slot(factory()) for factory in factories]
        self._rows = rows
        self._write_obs = row_writer(rows.obs)
        self._settings = Settings(PERIODIC, each_step=True)
        self._usual_logs = 1
        self.infos: list[Any] = [{} for _ in self._slots]

    def envs(self) -> list[gym.Env[Any, Any]]:
        return [slot.env for slot in self._slots]

    def open(self, settings: Settings) -> None:
        """Begin a collection."""
        self._settings = settings
        self._usual_logs = int(settings.min_loglevel <= PERIODIC)  # the reward, which is in the row anyway
        for slot in self._slots:
            if isinstance(slot.env, EnvWrapper):
                slot.env.logger.set_min_loglevel(settings.min_loglevel)

    def exchange(self, begins: Sequence[Begin], slots: Sequence[int], actions: Sequence[Any]) -> list[Note]:
        """Begin some episodes, step others by one action each, and return what they report."""
        notes: list[Note] = []
        for begin in begins:
            self._begin(begin, notes)
        if len(slots):
            self._step(slots, actions, notes)
        return notes

    def _begin(self, begin: Begin, notes: list[Note]) -> None:
        slot = self._slots[begin.slot]
        slot.begin, slot.rewards, slot.logs = begin, [], []
        try:
            obs, info = _reset(slot.env, begin)
            self._write_obs(begin.slot, obs)
        except StopIteration as error:
            if begin.has_initial:
                raise _failure(begin, error) from error
            notes.append(Note(begin.slot, exhausted=True))
            return
        except self._caught as error:
            raise _failure(begin, error) from error
        self.infos[begin.slot] = info
        if self._settings.each_step and _has_news(info, 0):
            notes.append(Note(begin.slot, info=info))

    def _step(self, slots: Sequence[int], actions: Sequence[Any], notes: list[Note]) -> None:
        every, usual = self._settings.each_step, self._usual_logs
        all_slots, write, infos = self._slots, self._write_obs, self.infos
        rewards_N, terminated_N, truncated_N = self._rows.reward, self._rows.terminated, self._rows.truncated
        slot = all_slots[0]
        try:
            for number, action in zip(slots, actions, strict=True):
                slot = all_slots[number]
                obs, reward, terminated, truncated, info = slot.step(action)
                if not slot.is_wrapper:
                    reward = as_number(reward, len(slot.rewards) + 1)
                write(number, obs)
                rewards_N[number] = reward
                terminated_N[number] = terminated
                truncated_N[number] = truncated
                slot.rewards.append(reward)
                infos[number] = info
                if terminated or truncated:
                    self._end(number, slot, info, notes)
                elif (len(info["log"]) > usual or info["aux_info"]) if slot.is_wrapper else every or info:
                    self._keep(number, slot, info, notes)
        except self._caught as error:
            raise _failure(slot.begin, error) from error

    def _keep(self, number: int, slot: _Slot, info: Any, notes: list[Note]) -> None:
        """Keep a step's logs for its episode, and report its info at once if each step is wanted."""
        if not slot.is_wrapper:
            info = self.infos[number] = self._with_own_logs(slot, info)
        if len(info["log"]) > self._usual_logs:
            slot.logs.append((len(slot.rewards) - 1, info["log"]))
        if self._settings.each_step and _has_news(info, self._usual_logs):
            notes.append(Note(number, info=info))

    def _end(self, number: int, slot: _Slot, info: Any, notes: list[Note]) -> None:
        steps = len(slot.rewards)
        if not slot.is_wrapper:
            info = self.infos[number] = self._with_own_logs(slot, info, steps_per_episode=steps)
        slot.logs.append((steps - 1, info["log"]))
        shown = info if self._settings.each_step else None
        notes.append(Note(number, info=shown, rewards=slot.rewards, logs=slot.logs))

    def _with_own_logs(self, slot: _Slot, info: Any, **own: float) -> Any:
        """Return the info of a foreign environment with the logs that an `EnvWrapper` would add."""
        logs: Logs = {}
        if self._settings.min_loglevel <= PERIODIC:
            logs = {name: (PERIODIC, value) for name, value in {"reward": slot.rewards[-1], **own}.items()}
        return {**info, "log": {**logs, **(info.get("log") or {})}}

    def close(self) -> None:
        for slot in self._slots:
            slot.env.close()


def _reset(env: gym.Env[Any, Any], begin: Begin) -> tuple[Any, Any]:
    if isinstance(env, EnvWrapper):
        return env.begin(begin.initial, begin.entropy) if begin.has_initial else env.reset(seed=_number(begin))
    options = {"initial_state": begin.initial} if begin.has_initial else None
    return env.reset(seed=_number(begin), options=options)


def _number(begin: Begin) -> int:
    return int(np.random.SeedSequence(begin.entropy).generate_state(1)[0])


def _has_news(info: Any, usual_logs: int) -> bool:
    """Return whether an info has anything that the row has not."""
    if len(info.get("log", ())) > usual_logs or info.get("aux_info"):
        return True
    return any(key not in ("log", "aux_info") for key in info)


def _failure(begin: Begin | None, error: BaseException) -> EpisodeError:
    """Return an error that names the episode it happened in."""
    if isinstance(error, EpisodeError):
        return error
    where = "an episode that has not begun" if begin is None else f"episode {begin.k}{_shown(begin)}"
    failure = EpisodeError(f"{where} failed with {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _shown(begin: Begin) -> str:
    if not begin.has_initial:
        return f" (random numbers from {begin.entropy})"
    try:
        text = repr(begin.initial)
    except Exception as error:  # noqa: BLE001 - a value that cannot be shown must not hide the error that matters
        text = f"<{type(begin.initial).__name__}, whose repr fails with {type(error).__name__}>"
    return f" with the initial state {text if len(text) <= SHOWN else text[:SHOWN] + '…'}"


# -- rows --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """One row per environment, for n environments: the action in; observation, reward and end out."""

    action: Tree
    obs: Tree
    reward: Array
    terminated: Array
    truncated: Array

    @classmethod
    def of(cls, observation_space: gym.Space[Any], action_space: gym.Space[Any], n: int) -> "Rows":
        return cls(
            empty_batch(action_space, n),
            empty_batch(observation_space, n),
            np.zeros(n),
            np.zeros(n, bool),
            np.zeros(n, bool),
        )

    def part(self, start: int, stop: int) -> "Rows":
        """Return the rows of one worker, as views."""
        return self._map(lambda array: array[start:stop])

    def _map(self, function: Callable[[Array], Array]) -> "Rows":
        action, obs = map_tree(function, self.action), map_tree(function, self.obs)
        return Rows(action, obs, function(self.reward), function(self.terminated), function(self.truncated))

    def inputs(self) -> list[Array]:
        """Return the arrays that are sent to a worker."""
        return leaves(self.action)

    def outputs(self) -> list[Array]:
        """Return the arrays that a worker sends back."""
        return [*leaves(self.obs), self.reward, self.terminated, self.truncated]

    def in_memory(self, memory: mmap.mmap) -> "Rows":
        """Return the same rows in shared memory."""
        offsets = self._offsets()
        return self._map(
            lambda array: np.frombuffer(memory, array.dtype, array.size, next(offsets)).reshape(array.shape)
        )

    def _offsets(self) -> Iterator[int]:
        offset = 0
        for array in [*self.inputs(), *self.outputs()]:
            yield offset
            offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT

    def size_bytes(self) -> int:
        return sum(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in [*self.inputs(), *self.outputs()])


def new_shared_file(size_bytes: int) -> int:
    """Return the descriptor of a file in memory that has no name; workers inherit it."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("sharpen-rows")
    else:
        with tempfile.TemporaryFile() as file:  # it has lost its name once it is open
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, max(size_bytes, 1))
    return descriptor


def map_shared(descriptor: int, size_bytes: int) -> mmap.mmap:
    return mmap.mmap(descriptor, max(size_bytes, 1))
