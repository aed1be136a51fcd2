"""Finite vector environments: many episodes side by side, each initial state exactly once.

All kinds follow the same schedule: in one *round* every running episode makes one step, and every idle environment
begins its next episode. What a policy sees together therefore does not depend on the kind, nor on which worker was
faster. When the seeds have run out an environment is *retired*; that is a flag, and no observation has a special
meaning.
"""

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np

from ..checks import check_choice, check_int
from ..errors import ConfigError, GymSpaceValidationError, InvalidInputError
from .env_set import PERIODIC, EnvSet, Note, Rows, Settings
from .env_wrapper import EnvWrapper, SeedsExhausted
from .logging import LogWriter
from .seed import Begin, Seeds, fresh_entropy
from .trees import Array, Tree, copied, map_tree, rows

FiniteEnvType: TypeAlias = Literal["dummy", "subproc", "shmem"]
EnvFactory: TypeAlias = Callable[[], gym.Env[Any, Any]]


class FiniteVectorEnv(abc.ABC):
    """The base of all kinds.

    `with venv.collector_guard():` opens a collection, calls the loggers and ends it when all environments are retired.
    Inside it, `reset` and `step` work on all environments or on those in `id`; a retired one returns zeros.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        n: int,
        logger: LogWriter | Sequence[LogWriter] = (),
    ) -> None:
        n = check_int("concurrency", n, at_least=1)
        self.observation_space, self.action_space = observation_space, action_space
        self.loggers = [logger] if isinstance(logger, LogWriter) else list(logger)
        self._n = n
        self._all = np.arange(n)
        self._rows = self._make_rows(n)
        self._alive = np.ones(n, bool)
        self._seeds = Seeds(None, entropy=fresh_entropy())
        self._settings = Settings(PERIODIC, each_step=True)
        self._episodes: list[Begin | None] = [None] * n
        self._is_running = np.zeros(n, bool)
        self.k_N = np.zeros(n, np.int64)
        """The number of the episode that each environment plays, or played last."""
        self.episode_returns: dict[int, float] = {}
        """The sum of rewards of each finished episode of this collection, by the episode's number."""
        self._infos: list[Any] = [{} for _ in range(n)]

    def _make_rows(self, n: int) -> Rows:
        return Rows.of(self.observation_space, self.action_space, n)

    # -- what the kinds differ in --------------------------------------------------------------------

    @abc.abstractmethod
    def _exchange(self, begins: Sequence[Begin], ids: Array) -> list[Note]:
        """Begin episodes, and step those in `ids` with the actions in the rows; results are written to the rows."""

    @abc.abstractmethod
    def _open(self, settings: Settings) -> None:
        """Start a collection in the environments, with these settings."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the environments and end their processes."""

    def __enter__(self) -> "FiniteVectorEnv":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- a collection --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._n

    @property
    def entropy(self) -> tuple[int, ...]:
        """What the random numbers of this collection's episodes are derived from, together with their numbers."""
        return self._seeds.entropy

    @property
    def is_over(self) -> bool:
        """Whether all environments are retired."""
        return not self._alive.any()

    @property
    def alive(self) -> Array:
        """Which environments are not retired."""
        return self._alive.copy()

    def bind(self, initial_states: Iterable[Any] | None, *, entropy: tuple[int, ...] = (0,)) -> None:
        """Play these initial states in the next collection, with random numbers from `entropy`."""
        self._seeds = Seeds(initial_states, entropy=entropy)

    @contextmanager
    def collector_guard(self) -> Iterator["FiniteVectorEnv"]:
        """Open a collection and close it at the end of the block, also when the seeds run out."""
        self.open_collection(each_step=True)
        with suppress(SeedsExhausted):
            yield self
        self.close_collection()

    def open_collection(self, *, each_step: bool, limit: int | None = None) -> None:
        """Begin a collection of at most `limit` episodes; `each_step` requests the infos of every step."""
        self._seeds.limit_to(limit)
        self._alive[:] = True
        self._is_running[:] = False
        self.episode_returns = {}
        lowest = min((int(each.loglevel) for each in self.loggers), default=PERIODIC)
        every = each_step or any(each.wants_steps for each in self.loggers)
        self._settings = Settings(lowest, every)
        self._open(self._settings)
        for logger in self.loggers:
            logger.on_env_all_ready()

    def stop_beginning(self) -> None:
        """Begin no further episode in this collection; running ones are played to their ends."""
        self._seeds.limit_to(self._seeds.drawn)

    def close_collection(self) -> None:
        for logger in self.loggers:
            logger.on_env_all_done()

    # -- one round, as the collector uses it ---------------------------------------------------------

    @property
    def obs(self) -> Tree:
        """The newest observation of each environment; overwritten by the next round."""
        return self._rows.obs

    def round(self, ids: Array, action_N: Tree) -> tuple[Array, Array, Array]:
        """Step the episodes in `ids`, and begin one in each idle environment.

        Return rewards, terminated and truncated of `ids`. Afterwards `running()` has new observations.
        """
        begins = self._draw((self._alive & ~self._is_running).nonzero()[0].tolist())
        if len(ids):
            self._put_actions(ids, action_N)
        notes = self._exchange(begins, ids)
        self._finish_round(begins, ids, notes)
        found = self._rows
        return found.reward[ids], found.terminated[ids], found.truncated[ids]

    def running(self) -> Array:
        """Return the environments that wait for an action."""
        return self._is_running.nonzero()[0]

    def _draw(self, slots: Iterable[int]) -> list[Begin]:
        begins = []
        for slot in slots:
            begin = self._seeds.draw(slot)
            if begin is None:
                self._alive[slot] = False
            else:
                begins.append(begin)
        return begins

    def _put_actions(self, ids: Array, action_N: Tree) -> None:
        count = len(ids)
        if count == self._n:
            ids = slice(None)  # type: ignore[assignment]

        def put(place: Array, action: Any) -> None:
            action = np.asarray(action)
            if action.dtype != place.dtype and not np.can_cast(action.dtype, place.dtype, "same_kind"):
                message = f"actions are {action.dtype}, but the action space has {place.dtype}"
                raise GymSpaceValidationError(message, self.action_space, action)
            if action.shape != (count, *place.shape[1:]) and place.dtype != object:
                needed = (count, *place.shape[1:])
                message = f"actions have shape {action.shape}, but one action for each of {count} needs {needed}"
                raise GymSpaceValidationError(message, self.action_space, action)
            place[ids] = action

        if isinstance(self._rows.action, np.ndarray):
            put(self._rows.action, action_N)
        else:
            map_tree(put, self._rows.action, action_N)

    def _finish_round(self, begins: Sequence[Begin], ids: Array, notes: Sequence[Note]) -> None:
        """Update the state after a round, and call the loggers."""
        for begin in begins:
            self._episodes[begin.slot], self._is_running[begin.slot], self.k_N[begin.slot] = begin, True, begin.k
        if self._settings.each_step:
            self._take_infos(begins, ids, notes)
        for note in notes:
            if note.exhausted:
                self._alive[note.slot] = self._is_running[note.slot] = False
        if self.loggers:
            self._call_loggers(begins, ids, notes)
        for note in notes:
            if note.rewards is not None:
                self._is_running[note.slot] = False
                self.episode_returns[int(self.k_N[note.slot])] = math.fsum(note.rewards)

    def _take_infos(self, begins: Sequence[Begin], ids: Array, notes: Sequence[Note]) -> None:
        """Store the infos of environments; for those that reported nothing the content is known."""
        for begin in begins:
            self._infos[begin.slot] = {"log": {}, "aux_info": {}}
        for i, reward in zip(ids.tolist(), self._rows.reward[ids].tolist(), strict=True):
            logs = {"reward": (PERIODIC, reward)} if self._settings.min_loglevel <= PERIODIC else {}
            self._infos[i] = {"log": logs, "aux_info": {}}
        for note in notes:
            if note.info is not None:
                self._infos[note.slot] = note.info

    def _call_loggers(self, begins: Sequence[Begin], ids: Array, notes: Sequence[Note]) -> None:
        for logger in self.loggers:
            if logger.wants_steps:
                self._call_with_steps(logger, begins, ids)
                continue
            for note in notes:
                if note.rewards is not None:
                    logger.on_env_episode(note.slot, note.rewards, note.logs)

    def _call_with_steps(self, logger: LogWriter, begins: Sequence[Begin], ids: Array) -> None:
        found = self._rows
        for begin in begins:
            if self._is_running[begin.slot]:
                logger.on_env_reset(begin.slot, rows(found.obs, begin.slot))
        for i in ids.tolist():
            done = bool(found.terminated[i] or found.truncated[i])
            logger.on_env_step(i, rows(found.obs, i), float(found.reward[i]), done, self._infos[i])

    # -- the interface of Qlib -----------------------------------------------------------------------

    def reset(self, id: int | Sequence[int] | Array | None = None) -> tuple[Tree, list[Any]]:
        """Begin the next episode in these environments; raise `SeedsExhausted` when all are retired."""
        ids = self._ids(id)
        begins = self._draw(slot for slot in ids.tolist() if self._alive[slot])
        notes = self._exchange(begins, self._all[:0]) if begins else []
        self._finish_round(begins, self._all[:0], notes)
        if not self._alive.any():
            raise SeedsExhausted("every initial state has been used")
        self._clear_retired()
        return rows(self._rows.obs, ids), [self._infos[i] for i in ids.tolist()]

    def step(
        self, action: Any, id: int | Sequence[int] | Array | None = None
    ) -> tuple[Tree, Array, Array, Array, list[Any]]:
        """Step these environments; return observations, rewards, terminated, truncated and infos."""
        ids = self._ids(id)
        if self._alive.all():
            live, chosen = ids, action
        else:
            keep = self._alive[ids]
            live, chosen = ids[keep], map_tree(lambda each: np.asarray(each)[keep], action)
        if not self._is_running[live].all():
            idle = live[~self._is_running[live]].tolist()
            raise InvalidInputError(f"environments {idle} have no running episode: reset them before the next step")
        self._put_actions(live, chosen)
        self._finish_round((), live, self._exchange((), live))
        found = self._rows
        if id is None:
            infos = list(self._infos)
            return copied(found.obs), found.reward.copy(), found.terminated.copy(), found.truncated.copy(), infos
        infos = [self._infos[i] for i in ids.tolist()]
        return rows(found.obs, ids), found.reward[ids], found.terminated[ids], found.truncated[ids], infos

    def _ids(self, id: int | Sequence[int] | Array | None) -> Array:
        if id is None:
            return self._all
        return np.atleast_1d(np.asarray(id, dtype=np.int64))

    def _clear_retired(self) -> None:
        """Set the rows of retired environments to zero."""
        retired = ~self._alive
        if retired.any():
            found = self._rows
            for array in found.outputs():
                array[retired] = None if array.dtype == object else 0
            for i in np.flatnonzero(retired).tolist():
                self._infos[i] = {"log": {}, "aux_info": {}}


class FiniteDummyVectorEnv(FiniteVectorEnv):
    """All environments in this process, one after the other."""

    def __init__(self, env_factories: Sequence[EnvFactory], logger: LogWriter | Sequence[LogWriter] = ()) -> None:
        envs = [factory() for factory in env_factories]
        if not envs:
            raise ConfigError("there are no environments: concurrency must be 1 or more")
        super().__init__(envs[0].observation_space, envs[0].action_space, len(envs), logger)
        self._set = EnvSet([lambda env=env: env for env in envs], self._rows)  # type: ignore[misc]
        self._seeds = seeds_of(envs[0])
        self._infos = self._set.infos

    def _take_infos(self, begins: Sequence[Begin], ids: Array, notes: Sequence[Note]) -> None:
        """Nothing to do: `EnvSet` writes them to the same list."""

    def _exchange(self, begins: Sequence[Begin], ids: Array) -> list[Note]:
        found = self._rows.action
        # Copies: a row is overwritten by the next round.
        actions = list(found[ids]) if isinstance(found, np.ndarray) else [_own_action(found, i) for i in ids.tolist()]
        return self._set.exchange(begins, ids.tolist(), actions)

    def _open(self, settings: Settings) -> None:
        self._set.open(settings)

    def close(self) -> None:
        self._set.close()


def _own_action(action_N: Tree, i: int) -> Tree:
    return map_tree(lambda array: array[i].copy(), action_N)


def seeds_of(env: gym.Env[Any, Any]) -> Seeds:
    """Return the seeds that an environment was made with; they are drawn for all environments together."""
    return Seeds(env.seed_iterator if isinstance(env, EnvWrapper) else None, entropy=fresh_entropy())


def vectorize_env(
    env_factory: EnvFactory | Sequence[EnvFactory],
    env_type: FiniteEnvType,
    concurrency: int,
    logger: LogWriter | Sequence[LogWriter] = (),
    *,
    processes: int | None = None,
) -> FiniteVectorEnv:
    """Return `concurrency` environments of one factory as a finite vector environment.

    "dummy" runs them in this process, "subproc" and "shmem" in worker processes (`processes`; by default one per
    environment, but at most one per core); "shmem" passes observations through shared memory. A `VectorSimulator` runs
    in this process, whatever the type.
    """
    from .vector_simulator import FiniteVectorSimulatorEnv, VectorSimulator
    from .worker_env import FiniteShmemVectorEnv, FiniteSubprocVectorEnv

    kinds = {"subproc": FiniteSubprocVectorEnv, "shmem": FiniteShmemVectorEnv}
    check_choice("finite_env_type", env_type, ("dummy", *kinds))
    factories = [env_factory] * concurrency if callable(env_factory) else list(env_factory)
    if isinstance(env_factory, type) and issubclass(env_factory, VectorSimulator):
        return FiniteVectorSimulatorEnv(env_factory, concurrency, logger)
    if env_type == "dummy":
        return FiniteDummyVectorEnv(factories, logger)
    return kinds[env_type](factories, logger, processes=processes)
