"""`Trainer`: trains a policy in iterations: collect episodes, update the policy, and validate every few iterations.

The order of one iteration: metrics cleared, on_iter_start, on_train_start, train, on_train_end, when due
on_validate_start, validate, on_validate_end; then the iteration is counted, and on_iter_end. Worker processes live
from the first collect to the end of `fit`. With the same seed a run gives the same numbers, also when it was killed
and resumed, and whichever kind of environment it uses.
"""

import hashlib
import logging
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np

from ...callbacks import Callback, EarlyStopping, named, restore_rng, rng_state, run_hook
from ...checkpoints import load_state
from ...checks import check_int, check_ints
from ...errors import ConfigError, StateFileError
from ...loggers import FinishStatus, Logger, LogLevel, wanting
from ...stats import ended_worse
from ..env_wrapper import EnvParts
from ..finite_env import FiniteEnvType, FiniteVectorEnv, vectorize_env
from ..logging import LogBuffer, LogWriter
from ..seed import SeedIterator
from ..vector_simulator import FiniteVectorSimulatorEnv, VectorSimulator
from .vessel import TrainingVesselBase

_logger = logging.getLogger(__name__)

Stage: TypeAlias = Literal["train", "val", "test"]
STAGES: dict[str, int] = {"train": 0, "val": 1, "test": 2}
PART_BYTES = 1 << 20  # larger parts are compared by identity only
Vessel: TypeAlias = TrainingVesselBase[Any, Any, Any, Any, Any]


class Trainer:
    """Trains and tests vessels.

    `max_iters=None` runs until a callback sets `should_stop`; `max_steps` ends the run after the iteration in which
    training reaches this many steps (`current_step`). `loggers` are `LogWriter`s, which get every episode, and loggers
    of `sharpen.loggers`, which get the metrics of every iteration. `fast_dev_run` limits the run to this many episodes
    and initial states. `seed` makes the run repeatable: it seeds Python, NumPy and torch as well.

    A run whose last validation is worse than its first, by more than chance explains, logs a warning at its end and
    keeps it in `warnings`.
    """

    should_stop: bool
    metrics: dict[str, float]
    current_iter: int
    current_episode: int
    current_step: int
    current_stage: str
    warnings: list[str]

    def __init__(
        self,
        *,
        max_iters: int | None = None,
        val_every_n_iters: int | None = None,
        loggers: LogWriter | Logger | Sequence[LogWriter | Logger] | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        finite_env_type: FiniteEnvType = "subproc",
        concurrency: int = 2,
        fast_dev_run: int | None = None,
        seed: int | None = None,
        max_steps: int | None = None,
    ) -> None:
        check_ints(at_least=0, max_iters=max_iters, max_steps=max_steps)
        check_int("concurrency", concurrency, at_least=1)
        check_ints(val_every_n_iters=val_every_n_iters, fast_dev_run=1 if fast_dev_run is True else fast_dev_run)
        self.max_iters, self.max_steps, self.val_every_n_iters = max_iters, max_steps, val_every_n_iters
        given = _checked(loggers, "loggers", (LogWriter, Logger))
        self._buffer = LogBuffer(self._metrics_callback, LogLevel.PERIODIC)
        self.loggers: list[Any] = [*given, self._buffer]
        self.callbacks: list[Callback] = _checked(callbacks, "callbacks", (Callback,))
        self.finite_env_type, self.concurrency, self.fast_dev_run = finite_env_type, concurrency, fast_dev_run
        self._is_seeded = seed is not None
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self.vessel: Vessel | None = None
        self._pool = _EnvPool(finite_env_type, concurrency)
        self._stop_is_limit = False
        self._reset_state()

    def _reset_state(self) -> None:
        self.should_stop, self.current_iter, self.current_episode, self.current_step = False, 0, 0, 0
        self.current_stage = "train"
        self.metrics, self.warnings = {}, []
        self._first_returns: dict[int, float] | None = None
        self._last_returns: dict[int, float] = {}

    # -- the loop ------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Start a new run."""
        self._reset_state()
        self._stop_is_limit = False
        if self._is_seeded:
            _seed_everything(self.seed)

    def initialize_iter(self) -> None:
        """Start an iteration with empty metrics."""
        self.metrics = {}

    def fit(self, vessel: Vessel, ckpt_path: str | os.PathLike[str] | None = None) -> None:
        """Train until `max_iters` or `should_stop`; with `ckpt_path`, resume from that checkpoint."""
        self.vessel = vessel
        vessel.assign_trainer(self)
        vessel.check_ready(("train",) if self.val_every_n_iters is None else ("train", "val"))
        saved = None if ckpt_path is None else load_state(ckpt_path)
        if saved is None:
            self.initialize()
        else:
            with _naming_checkpoint(ckpt_path):
                self._load(saved)
        with self._closing():
            self._log_config()
            self._call("on_fit_start")
            if saved is not None:
                with _naming_checkpoint(ckpt_path):
                    _load_named(self.named_callbacks(), saved["callbacks"])
            self._stop_at_limit()
            while not self.should_stop:
                self._iterate()
            self._warn_of_decline()
            self._call("on_fit_end")

    def _iterate(self) -> None:
        self.initialize_iter()
        self._call("on_iter_start")
        steps = self._buffer.global_step
        self._run_stage("train")
        self.current_step += self._buffer.global_step - steps
        if self.val_every_n_iters is not None and (self.current_iter + 1) % self.val_every_n_iters == 0:
            self._run_stage("val")
        self.current_iter += 1
        self._stop_at_limit()
        self._log_metrics({**self.metrics, "run/steps": float(self.current_step)})
        self._call("on_iter_end")

    def _warn_of_decline(self) -> None:
        """Compare the last validation with the first, episode by episode: both played the same episodes."""
        has_best_weights = any(isinstance(each, EarlyStopping) and each.has_restored for each in self.callbacks)
        found = None if has_best_weights else ended_worse(self._first_returns or {}, self._last_returns)
        if found is not None:
            self.warnings.append(
                f"{found.describe('val/reward')}. Try a lower learning rate or more steps per iteration; "
                "EarlyStopping(monitor='val/reward', restore_best_weights=True) keeps the best weights"
            )
            _logger.warning("%s", self.warnings[-1])

    def _stop_at_limit(self) -> None:
        limits = ((self.current_iter, self.max_iters), (self.current_step, self.max_steps))
        is_reached = any(limit is not None and count >= limit for count, limit in limits)
        if is_reached and not self.should_stop:
            self.should_stop = self._stop_is_limit = True

    def test(self, vessel: Vessel) -> None:
        """Play every test state once. The metrics are in `metrics` and are logged under `test/`."""
        self.vessel = vessel
        vessel.assign_trainer(self)
        vessel.check_ready(("test",))
        with self._closing():
            self.initialize_iter()
            self._run_stage("test")
            self._log_metrics({f"test/{name}": value for name, value in self.metrics.items()})

    def _run_stage(self, stage: Stage) -> None:
        vessel = self._bound()
        self.current_stage = stage
        hook = "validate" if stage == "val" else stage
        self._call(f"on_{hook}_start")
        iterators = {
            "train": vessel.train_seed_iterator,
            "val": vessel.val_seed_iterator,
            "test": vessel.test_seed_iterator,
        }
        with _opened(iterators[stage]()) as iterator:
            venv = self.venv_from_iterator(iterator)
            result = getattr(vessel, hook)(venv)
        if stage == "val":
            self._last_returns = dict(venv.episode_returns)
            if self._first_returns is None:
                self._first_returns = self._last_returns
        self._add_metrics(result or {})
        self._call(f"on_{hook}_end")

    def venv_from_iterator(self, iterator: Iterable[Any]) -> FiniteVectorEnv:
        """Return the vessel's vector environment with these initial states; its workers are kept between calls."""
        venv = self._pool.env_for(self._bound(), self._writers())
        # Every validation is the same, so that iterations can be compared; training never repeats itself.
        iteration = self.current_iter if self.current_stage == "train" else 0
        venv.bind(iterator, entropy=(self.seed, STAGES[self.current_stage], iteration))
        return venv

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Stop the workers and finish the loggers, however the run ends."""
        status: FinishStatus = "failed"
        try:
            yield
            status = "succeeded"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            self._pool.close()
            for logger in self.metric_loggers():
                logger.finish(status)

    def _bound(self) -> Vessel:
        if self.vessel is None:
            raise ConfigError("the trainer has no vessel yet: call fit or test first")
        return self.vessel

    def _call(self, hook: Any) -> None:
        run_hook(self.callbacks, hook, self, self._bound())

    # -- metrics -------------------------------------------------------------------------------------

    def _metrics_callback(self, on_episode: bool, on_collect: bool, log_buffer: LogBuffer) -> None:
        if on_episode:
            self.current_episode = log_buffer.global_episode
            self._add_metrics(log_buffer.episode_metrics())
        elif on_collect:
            self._add_metrics(log_buffer.collect_metrics())

    def _add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Validation metrics get a prefix, so that they do not hide those of training."""
        prefix = "val/" if self.current_stage == "val" else ""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float | np.number)}
        self.metrics.update({prefix + name: float(value) for name, value in numbers.items()})

    def _log_metrics(self, metrics: Mapping[str, float]) -> None:
        for logger in wanting(self.metric_loggers(), LogLevel.PERIODIC):
            logger.log_metrics(metrics, self.current_iter)

    def _writers(self) -> list[LogWriter]:
        return [each for each in self.loggers if isinstance(each, LogWriter)]

    def metric_loggers(self) -> list[Logger]:
        """Return the loggers that take the metrics of iterations."""
        return [each for each in self.loggers if not isinstance(each, LogWriter)]

    def _min_loglevel(self) -> int:
        """Return the lowest level that any writer wants; nothing below it leaves a worker."""
        return min(int(each.loglevel) for each in self._writers())

    def _log_config(self) -> None:
        settings = {
            "max_iters": self.max_iters,
            "max_steps": self.max_steps,
            "val_every_n_iters": self.val_every_n_iters,
            "finite_env_type": self.finite_env_type,
            "concurrency": self.concurrency,
            "fast_dev_run": self.fast_dev_run,
            "seed": self.seed,
        }
        for logger in self.metric_loggers():
            logger.log_config(settings)

    # -- state ---------------------------------------------------------------------------------------

    def named_callbacks(self) -> dict[str, Callback]:
        """Return the callbacks by their class name in lower case, numbered if it repeats."""
        return named(self.callbacks)

    def named_loggers(self) -> dict[str, Any]:
        """Return the loggers by their class name in lower case, numbered if it repeats."""
        return named(self.loggers)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume as if nothing had happened."""
        return {
            "vessel": {} if self.vessel is None else self.vessel.state_dict(),
            "callbacks": {name: each.state_dict() for name, each in self.named_callbacks().items()},
            "loggers": {name: each.state_dict() for name, each in self.named_loggers().items()},
            # A run that stopped at max_iters or max_steps can be resumed with more of them.
            "should_stop": self.should_stop and not self._stop_is_limit,
            "current_iter": self.current_iter,
            "current_episode": self.current_episode,
            "current_step": self.current_step,
            "current_stage": self.current_stage,
            "metrics": dict(self.metrics),
            "validations": [_as_array(self._first_returns), _as_array(self._last_returns)],
            "seed": self.seed,
            "rng": rng_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state, including that of the callbacks."""
        self._load(state_dict)
        _load_named(self.named_callbacks(), state_dict["callbacks"])

    def _load(self, state: dict[str, Any]) -> None:
        """Restore all but the callbacks: they are restored after `on_fit_start`, which would reset them."""
        self.seed = state["seed"]
        self._bound().load_state_dict(state["vessel"])
        _load_named(self.named_loggers(), state["loggers"])
        self.should_stop, self._stop_is_limit = state["should_stop"], False
        self.current_iter, self.current_episode = state["current_iter"], state["current_episode"]
        self.current_step = state.get("current_step", 0)  # 0.1 did not count them
        self.current_stage, self.metrics = state["current_stage"], dict(state["metrics"])
        first, last = map(_as_returns, state.get("validations", [None, None]))  # 0.1 did not keep them
        self.warnings, self._first_returns, self._last_returns = [], first, last or {}
        restore_rng(state["rng"])

    @staticmethod
    def get_policy_state_dict(ckpt_path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the state of the policy in a checkpoint."""
        return load_state(ckpt_path)["vessel"]["policy"]  # type: ignore[no-any-return]


class _EnvPool:
    """The vector environment of a trainer, kept as long as the parts of the vessel stay the same.

    Starting workers is slow, so they are started once, and get their seeds with each episode. If an interpreter or the
    reward was changed between two collects, they are started again.
    """

    def __init__(self, env_type: FiniteEnvType, concurrency: int) -> None:
        self._env_type, self._concurrency = env_type, concurrency
        self._env: FiniteVectorEnv | None = None
        self._parts_fingerprint: tuple[Any, ...] = ()

    def env_for(self, vessel: Vessel, loggers: Sequence[LogWriter]) -> FiniteVectorEnv:
        """Return the environment of these parts, with these loggers."""
        if self._env is None or self._parts_fingerprint != _fingerprint(vessel):
            self.close()
            self._env = self._make(vessel)
            self._parts_fingerprint = _fingerprint(vessel)
        self._env.loggers = list(loggers)
        return self._env

    def _make(self, vessel: Vessel) -> FiniteVectorEnv:
        simulator_fn = vessel.simulator_fn
        if isinstance(simulator_fn, type) and issubclass(simulator_fn, VectorSimulator):
            return FiniteVectorSimulatorEnv(simulator_fn, self._concurrency)
        parts = EnvParts(simulator_fn, vessel.state_interpreter, vessel.action_interpreter, vessel.reward)
        return vectorize_env(parts, self._env_type, self._concurrency)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


def _fingerprint(vessel: Vessel) -> tuple[Any, ...]:
    """Return what distinguishes one set of parts from another."""
    parts = (vessel.state_interpreter, vessel.action_interpreter, vessel.reward)
    return (id(vessel.simulator_fn), *map(id, parts), _digest(parts))


def _digest(parts: tuple[Any, ...]) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        data: bytes = cloudpickle.dumps(parts)
    except Exception:  # noqa: BLE001 - parts that cannot be pickled can be used in this process
        return b""
    return hashlib.sha256(data).digest() if len(data) <= PART_BYTES else b""


def _as_array(returns: Mapping[int, float] | None) -> Any:
    """Return the returns of episodes as rows, for a checkpoint."""
    return None if returns is None else np.array(list(returns.items()), np.float64).reshape(-1, 2)


def _as_returns(array: Any) -> dict[int, float] | None:
    return None if array is None else {int(number): total for number, total in array.tolist()}


def _checked(given: Any, setting: str, kinds: tuple[type, ...]) -> list[Any]:
    """Return a list of what was passed, alone or as a sequence."""
    things = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for thing in things:
        if not isinstance(thing, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"{setting} contains {thing!r}, which is not a {names}: derive its class from one")
    return things


def _load_named(things: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Restore callbacks or loggers by name; those that are new in this run keep their state."""
    for name, thing in things.items():
        if name in states:
            thing.load_state_dict(states[name])


@contextmanager
def _naming_checkpoint(ckpt_path: object) -> Iterator[None]:
    """Name the checkpoint in errors about parts that do not fit this run."""
    try:
        yield
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        raise StateFileError(
            f"{str(ckpt_path)!r} does not fit this run: {type(error).__name__}: {error}; build the policy, the "
            "callbacks and the loggers as they were when it was written"
        ) from error


@contextmanager
def _opened(iterator: SeedIterator[Any]) -> Iterator[Iterable[Any]]:
    if isinstance(iterator, AbstractContextManager):
        with iterator as opened:
            yield opened
    else:
        yield iterator


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
