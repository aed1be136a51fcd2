"""Finite vector environments whose environments run in worker processes.

A worker holds several environments. A round costs one message to each busy worker and one back: a header and the rows,
or, with shared memory, the header alone. Only what is rare (initial states, logs, errors) is pickled. Workers live
until `close`, across all collections.
"""

import itertools
import os
import pickle
import weakref
from collections.abc import Sequence

import numpy as np

from ..checks import check_int
from ..errors import ConfigError, WorkerDiedError
from .env_set import SHOWN, Note, Rows, Settings, map_shared, new_shared_file
from .finite_env import EnvFactory, FiniteVectorEnv, seeds_of
from .logging import LogWriter
from .seed import Begin
from .spaces import has_fixed_shape
from .trees import Array
from .worker_process import OPEN, ROUND, Opening, Work, WorkerProcess, pack


class _WorkerVectorEnv(FiniteVectorEnv):
    env_type: str
    is_shared = False

    def __init__(
        self,
        env_factories: Sequence[EnvFactory],
        logger: LogWriter | Sequence[LogWriter] = (),
        *,
        processes: int | None = None,
    ) -> None:
        if not env_factories:
            raise ConfigError("there are no environments: concurrency must be 1 or more")
        probe = env_factories[0]()
        for name, space in (("observation", probe.observation_space), ("action", probe.action_space)):
            if not has_fixed_shape(space):
                raise ConfigError(
                    f"the {name} space {space} has no fixed shape, so it cannot be used with {self.env_type!r}: "
                    "use 'dummy'"
                )
        self._shared: int | None = None
        super().__init__(probe.observation_space, probe.action_space, len(env_factories), logger)
        self._seeds, seed_iterator = seeds_of(probe), getattr(probe, "seed_iterator", None)
        probe.close()
        self._bounds = _bounds(self._n, processes)
        self._masks = np.zeros(self._n, np.uint8)
        self._workers: list[WorkerProcess] = []
        self._waits_for_start = True
        weakref.finalize(self, _kill, self._workers)
        self._start(env_factories, seed_iterator)

    def _start(self, factories: Sequence[EnvFactory], seed_iterator: object) -> None:
        """Start all workers at once; the first collection waits for them."""
        try:
            for number in range(len(self._bounds)):
                self._workers.append(WorkerProcess(number, self._shared))
            for worker, (start, stop) in zip(self._workers, self._bounds, strict=True):
                spaces = (self.observation_space, self.action_space)
                own = list(factories[start:stop])
                worker.send_work(pack(Work(worker.number, *spaces, self._n, start, stop, own), seed_iterator))
        except BaseException:
            self.kill()
            raise
        finally:
            if self._shared is not None:
                os.close(self._shared)

    def _wait_for_start(self) -> None:
        for worker, (start, stop) in zip(self._workers, self._bounds, strict=True):
            worker.receive()
            own, mask = self._rows.part(start, stop), self._masks[start:stop]
            worker.link.fix(
                sent=[mask] if self.is_shared else [mask, *own.inputs()],
                received=[] if self.is_shared else own.outputs(),
            )
        self._waits_for_start = False

    def _open(self, settings: Settings) -> None:
        if not self._workers:
            raise ConfigError("this vector environment is closed: create a new one")
        opening = pickle.dumps(Opening(settings, self._seeds.entropy))
        try:
            if self._waits_for_start:
                self._wait_for_start()
            for worker in self._workers:
                worker.send(OPEN, opening)
            for worker in self._workers:
                worker.receive()
        except BaseException:
            self.kill()
            raise

    def _exchange(self, begins: Sequence[Begin], ids: Array) -> list[Note]:
        if not self._workers:
            raise ConfigError("this vector environment is closed: create a new one")
        try:
            return self._round(begins, ids)
        except WorkerDiedError as error:
            playing = self._playing(begins)
            self.kill()
            raise WorkerDiedError(f"{error}; {playing}") from None
        except BaseException:
            self.kill()  # the workers are in the middle of a round whose results are lost
            raise

    def _round(self, begins: Sequence[Begin], ids: Array) -> list[Note]:
        masks = self._masks
        masks[:] = 0
        masks[ids] = 1
        busy: list[tuple[WorkerProcess, int]] = []
        for worker, (start, stop) in zip(self._workers, self._bounds, strict=True):
            own = (
                [each._replace(slot=each.slot - start) for each in begins if start <= each.slot < stop]
                if begins
                else ()
            )
            if own or len(ids) == self._n or masks[start:stop].any():
                self._current_worker = worker
                worker.send(ROUND, pickle.dumps(own, 5) if own else b"")
                busy.append((worker, start))
        notes: list[Note] = []
        for worker, start in busy:
            self._current_worker = worker
            notes += [note._replace(slot=note.slot + start) for note in worker.receive()]
        return notes

    def _playing(self, begins: Sequence[Begin]) -> str:
        """Return the episodes that the worker that died was playing."""
        start, stop = self._bounds[self._current_worker.number]
        episodes = [each for each in self._episodes if each is not None and self._is_running[each.slot]]
        now = {each.slot: each for each in [*episodes, *begins]}
        playing = [
            f"episode {each.k} with {each.initial!r:.{SHOWN}}" for slot, each in now.items() if start <= slot < stop
        ]
        return f"it was playing {', '.join(playing)}" if playing else "it was not playing"

    def kill(self) -> None:
        """Kill all workers."""
        _kill(self._workers)

    def close(self) -> None:
        workers = list(self._workers)
        self._workers.clear()
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.end()


def _bounds(n: int, processes: int | None) -> list[tuple[int, int]]:
    """Return the first slot of each worker and the slot after its last."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(n, check_int("processes", processes, at_least=1, optional=True) or cores)
    edges = [n * number // count for number in range(count + 1)]
    return list(itertools.pairwise(edges))


def _kill(workers: list[WorkerProcess]) -> None:
    gone = list(workers)
    workers.clear()
    for worker in gone:
        worker.kill()
    for worker in gone:
        worker.end()


class FiniteSubprocVectorEnv(_WorkerVectorEnv):
    """Environments in worker processes; rows are sent through sockets."""

    env_type = "subproc"


class FiniteShmemVectorEnv(_WorkerVectorEnv):
    """Environments in worker processes; rows are in memory that all of them share."""

    env_type = "shmem"
    is_shared = True

    def _make_rows(self, n: int) -> Rows:
        plain = super()._make_rows(n)
        self._shared = new_shared_file(plain.size_bytes())
        return plain.in_memory(map_shared(self._shared, plain.size_bytes()))
