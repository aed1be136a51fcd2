"""`TrainingLoop`: the iterations of an algorithm, as callbacks and loggers see them; its checkpoints.

It lives in the process of the algorithm, and builds its parts there. An algorithm that reports an iteration has the
hooks called in their one order, and the loggers told. What a callback or a logger raises ends the run, also where the
algorithm catches it.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..callbacks import Callback, Checkpoint, Hook, named, restore_rng, rng_state, run_hook
from ..callbacks.base import State
from ..checkpoints import load_state, save_state
from ..components import build_component
from ..files import read_json, remove_leftovers, write_json
from ..loggers import ConsoleLogger, FinishStatus, JsonlLogger, Logger, LogLevel
from ..loggers.metrics import as_numbers
from ..runs.folder import CHECKPOINT, METRICS, FullDisk
from ..runs.screen import screen

if TYPE_CHECKING:
    from .algorithm_bundle import RunPlan

log = logging.getLogger(__name__)
Metrics = Mapping[str, float]


class TrainingLoop:
    """A `Loop`. Hooks get the trainer in its place, where that is in the same process."""

    def __init__(self, plan: "RunPlan", trainer: Any = None) -> None:
        self.plan, self.algorithm = plan, plan.algorithm
        self.callbacks: list[Callback] = []
        self.loggers: list[Logger] = []
        self.error: BaseException | None = None
        """What a callback or a logger raised."""
        self._loop_for_hooks: Any = self if trainer is None else trainer
        self._records: JsonlLogger | None = None
        self._unwritten: list[tuple[Metrics, int]] = []
        self._disk = FullDisk("metrics")
        self._is_in_iteration = False
        self.metrics: dict[str, float] = {}
        self.current_iter = 0
        self.current_stage = "train"
        self.should_stop = False

    # -- from the beginning to the end ---------------------------------------------------------------

    @contextmanager
    def opened(self, saved: State | None) -> Iterator[None]:
        """Build everything and hand out the settings; at the end, tell the loggers how the run ended."""
        status: FinishStatus = "failed"
        try:
            self._open(saved)
            yield
            status = "succeeded"
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            status = "interrupted"
            raise
        finally:
            if self.error is None:
                self._write_records()
            for logger in self.loggers:
                try:
                    logger.finish(status)
                except Exception:  # the others must be notified of the end, too, and the run is over
                    log.exception("%s failed in finish()", type(logger).__name__)

    def _open(self, saved: State | None) -> None:
        plan = self.plan
        callbacks = make_callbacks(plan.callbacks, plan.run_dir)
        self.loggers = make_loggers(plan.loggers, plan.run_dir)
        if not any(map(self._writes_records, self.loggers)):  # or they would be there twice
            self._records = JsonlLogger(plan.run_dir)
        if saved is not None:
            self.restore(saved)  # without the callbacks, whose on_fit_start makes them forget
            restore_rng(saved["rng"])
        elif self._records is not None:
            self._records.load_state_dict({"step": 0, "is_begun": True})  # nothing is rewritten during the run
        self.callbacks = callbacks
        for logger in self.loggers:
            logger.log_config(plan.config)

    def _writes_records(self, logger: Logger) -> bool:
        return isinstance(logger, JsonlLogger) and logger.path == self.plan.run_dir / METRICS

    def start(self, saved: State | None) -> None:
        """Before the algorithm runs."""
        self._call("on_fit_start")
        if saved is not None:
            _load_named(self.callbacks, saved["callbacks"])

    def end(self) -> None:
        """After the algorithm has run."""
        if self.error is not None:
            raise self.error
        self._call("on_fit_end")

    # -- iterations ----------------------------------------------------------------------------------

    def begin_iteration(self) -> None:
        if self._is_in_iteration:
            return
        self._is_in_iteration = True
        self.metrics, self.current_stage = {}, "train"
        self._call("on_iter_start")
        self._call("on_train_start")

    def report_iteration(self, metrics: Metrics, val_metrics: Metrics | None) -> bool:
        train = _in_namespace("train", metrics)
        val = None if val_metrics is None else _in_namespace("val", val_metrics)
        self.begin_iteration()
        self.metrics.update(train)
        self._call("on_train_end")
        if val is not None:
            self.current_stage = "val"
            self._call("on_validate_start")
            self.metrics.update(val)
            self._call("on_validate_end")
        self.current_iter += 1
        self._is_in_iteration = False
        self._log(self.metrics)
        self._call("on_iter_end")
        return self.should_stop

    def report_validation(self, metrics: Metrics) -> None:
        """Between iterations: notify the loggers, and do nothing else."""
        self._log(_in_namespace("val", metrics))

    def _log(self, metrics: Metrics) -> None:
        with self._noting_errors():
            if self._records is not None:
                self._unwritten.append((metrics, self.current_iter))
            self._write_records()
            for logger in self.loggers:
                # Metrics of iterations are periodic. The records of the run are kept whatever level somebody asked for.
                if logger.wants(LogLevel.PERIODIC) or self._writes_records(logger):
                    logger.log_metrics(metrics, self.current_iter)

    def _write_records(self) -> None:
        """Write the metrics into the run's folder; those that find the disk full are written later."""
        if self._records is not None:
            with self._disk.tolerated(self.plan.run_dir):
                while self._unwritten:
                    self._records.log_metrics(*self._unwritten[0])
                    del self._unwritten[0]

    def _call(self, hook: Hook) -> None:
        algorithm: Any = self.algorithm
        with self._noting_errors():
            run_hook(self.callbacks, hook, self._loop_for_hooks, algorithm)

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.error = error
            raise

    # -- state ---------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return everything that is needed to continue, with the state of the algorithm."""
        return {"algorithm": {} if self.algorithm is None else self.algorithm.state_dict(), **self.own_state()}

    def load_state_dict(self, state_dict: State, /) -> None:
        if self.algorithm is not None:
            self.algorithm.load_state_dict(state_dict["algorithm"])
        self.restore(state_dict)
        restore_rng(state_dict["rng"])

    def own_state(self) -> State:
        """The same without the algorithm."""
        return {
            "callbacks": {name: each.state_dict() for name, each in named(self.callbacks).items()},
            "loggers": {name: each.state_dict() for name, each in named(self.loggers).items()},
            "records": None if self._records is None else self._records.state_dict(),
            "should_stop": self.should_stop,
            "current_iter": self.current_iter,
            "current_stage": self.current_stage,
            "metrics": dict(self.metrics),
            "rng": rng_state(),
        }

    def restore(self, saved: State) -> None:
        """Go back to what `own_state` returned. Random generators continue: a second try differs from the first."""
        self._unwritten.clear()
        _load_named(self.callbacks, saved["callbacks"])
        _load_named(self.loggers, saved["loggers"])
        if self._records is not None and saved["records"] is not None:
            self._records.load_state_dict(saved["records"])
        self.should_stop, self.current_iter = saved["should_stop"], saved["current_iter"]
        self.current_stage, self.metrics = saved["current_stage"], dict(saved["metrics"])
        self._is_in_iteration = False

    @property
    def place(self) -> str:
        """Where the run is, in words for people; nothing where the algorithm reports no iterations."""
        if self._is_in_iteration:
            return f"iteration {self.current_iter + 1}"
        return f"{self.current_iter} iterations" if self.current_iter else ""


def _in_namespace(name: str, metrics: Metrics) -> dict[str, float]:
    """Every metric under `name/`, where it is not there already."""
    found = as_numbers(metrics)
    return {key if key.startswith(f"{name}/") else f"{name}/{key}": value for key, value in found.items()}


def _load_named(things: Sequence[Any], states: Mapping[str, Any]) -> None:
    """Callbacks and loggers that are new in this run keep what they have."""
    for name, thing in named(things).items():
        if name in states:
            thing.load_state_dict(states[name])


# -- its checkpoints ---------------------------------------------------------------------------------


class Checkpoints:
    """The checkpoint of a run: the state of the algorithm as JSON, and that of its loop beside it.

    `algorithm.json` is what counts. The state of the loop is in a file whose name is made from the state of the
    algorithm that it belongs to, and is written first; so the two that are read are always of one moment, also when
    the process is killed between them.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / CHECKPOINT
        self._disk = FullDisk("checkpoints")

    def save(self, state: State, loop: TrainingLoop) -> None:
        """Keep the state. While the disk is full, the last one that could be written stays."""
        with self._disk.tolerated(self._path.parent):
            kept = self._loop_path(state)
            if loop.callbacks or loop.loggers or loop.current_iter:
                save_state(kept, loop.own_state())
            write_json(self._path, state)
            for old in self._path.parent.glob("loop-*.state"):
                if old != kept:
                    old.unlink(missing_ok=True)

    @property
    def exist(self) -> bool:
        """Whether there is one to resume from."""
        return self._path.exists()

    def load(self) -> State | None:
        """Return the state of the algorithm."""
        return read_json(self._path, kind=dict) if self.exist else None

    def load_loop(self) -> State | None:
        """Return the state of the loop at that moment."""
        state = self.load()
        if state is None:
            return None
        remove_leftovers(self._path.parent)
        path = self._loop_path(state)
        return load_state(path) if path.exists() else None

    def _loop_path(self, state: Any) -> Path:
        # Read and written once more: what JSON lacks, such as a tuple, is then what it will be when it is loaded.
        plain = msgspec.json.decode(msgspec.json.encode(state))
        digest = hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()
        return self._path.with_name(f"loop-{digest[:16]}.state")


# -- its parts ---------------------------------------------------------------------------------------


def make_callbacks(specs: Sequence[Any], run_dir: Path) -> list[Callback]:
    """What takes a folder and has none gets that of the run; files of a `Checkpoint` lie in its `checkpoints`."""
    callbacks: list[Callback] = []
    for spec in specs:
        callback = build_component(
            spec, expected_type=Callback, spec_name="callbacks", optional_defaults={"dirpath": run_dir}
        )
        if isinstance(callback, Checkpoint) and callback is not spec and callback.dirpath == run_dir:
            callback.dirpath /= "checkpoints"
        callbacks.append(callback)
    return callbacks


def make_loggers(specs: Sequence[Any], run_dir: Path) -> list[Logger]:
    """The same for loggers. Those for the console share the screen of the run, with its progress line at the end."""
    loggers: list[Logger] = []
    for spec in specs:
        logger = build_component(
            spec, expected_type=Logger, spec_name="loggers", optional_defaults={"dirpath": run_dir}
        )
        if not hasattr(logger, "loglevel"):  # one of the user's own, which does not call our constructor
            logger.loglevel = LogLevel.PERIODIC
        if isinstance(logger, ConsoleLogger):
            logger.share(screen())
        loggers.append(logger)
    return loggers
