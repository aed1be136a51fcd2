"""`TrainerWrapper`: one fine-tuning run, from the name of a model to a folder with the trained one.

A wrapper checks what it was given without loading a model, and trains on TRL. It is a loop like all others:
an iteration is one step of the optimiser, callbacks are called in their one order with `(wrapper, model)`, and the
loggers get the metrics of every logged step. The order after a step: metrics logged, on_train_end, validation when it
is due, the step counted, on_iter_end, checkpoint when it is due.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from ...callbacks import Callback, Hook, named, run_hook
from ...callbacks.base import State
from ...errors import ConfigError
from ...files import describe_size, folder_size
from ...loggers import FinishStatus, Logger, LogLevel, wanting
from ..errors import TrainingError
from ..models.source import ModelSource, find_model
from ..plain_json import write_json
from ..reward_runner import RewardFunction, reward_runners
from ..sources import Dataset, Source, as_dataset
from .checkpoints import (
    check_apart,
    find_checkpoint,
    keep_newest,
    load_named,
    read_state,
    remove_half_written,
    set_aside,
    write_checkpoint,
)
from .config import TrainingConfig
from .loss_watch import LossWatch, not_finite
from .options import PARTS, Algorithm
from .output import Record, check_output_dir, make_loggers, output_folder
from .preflight import check_texts, describe_parameters
from .processes import processes
from .settings import Settings, resolve
from .trained_model import TrainedModel, validate

log = logging.getLogger(__name__)

# Columns beside the texts that TRL hands to the chat template.
_FOR_TEMPLATES = ("tools", "chat_template_kwargs")
# What transformers logs at the end of a run, or while it evaluates, is no metric of a step.
_NOT_OF_A_STEP = ("train_", "eval_", "total_flos")


class TrainerWrapper:
    """Base of the wrappers: everything that does not depend on the algorithm."""

    algorithm: ClassVar[Algorithm]
    columns: ClassVar[Sequence[str]]
    """The columns that every row must have."""

    metrics: dict[str, float]
    current_iter: int
    current_stage: str
    should_stop: bool
    _given: dict[str, Any]

    def _set_up(self) -> None:
        """Check what was given; nothing is loaded."""
        given = self._given
        if isinstance(given.get("model_name"), TrainingConfig):
            raise ConfigError("model_name is a TrainingConfig: pass it as config= instead")
        eval_dataset, eval_reward_fn = given.get("eval_dataset"), given.get("eval_reward_fn")
        self.settings: Settings = resolve(
            self.algorithm,
            given.get("config"),
            {name: value for name, value in given.items() if name not in PARTS},
            has_eval_dataset=eval_dataset is not None,
            has_eval_reward=eval_reward_fn is not None,
        )
        if eval_reward_fn is not None:
            reward_runners(eval_reward_fn)  # before the training, not at its first validation
            if eval_dataset is None:
                raise ConfigError("eval_reward_fn scores answers to eval_dataset, which is missing: pass both")
        self.source: ModelSource = find_model(self.settings.model_name)
        self.output_dir = check_output_dir(self.settings.output_dir)
        self.dataset = self._rows(given.get("dataset"), "dataset")
        self.eval_dataset = None if eval_dataset is None else self._rows(eval_dataset, "eval_dataset")
        self.eval_reward_fn: RewardFunction | None = eval_reward_fn
        self.callbacks = _callbacks(given.get("callbacks"))
        self.resume: bool | str | os.PathLike[str] = given.get("resume", False)
        self.allow_download: bool = given.get("allow_download", True)
        self.model: TrainedModel | None
        self._trainer: Any
        self._reset()

    def _rows(self, rows: Source | None, name: str) -> Dataset:
        if rows is None:
            raise ConfigError(f"{name} is missing: pass a list of dicts, the path of a JSON Lines file, or a Dataset")
        dataset = as_dataset(rows)
        check_texts(dataset, self.columns, source=name)
        return dataset

    def _reset(self) -> None:
        self.metrics, self.current_iter, self.current_stage = {}, 0, "train"
        self.should_stop = self._is_agreed_to_stop = False
        self._processes = processes()
        self.model, self._trainer = None, None  # what an earlier run holds makes room
        is_first = self._processes.is_first  # the others write nothing
        self.loggers: list[Logger] = make_loggers(self.settings.loggers, self.output_dir) if is_first else []
        self._record = Record()
        self._watch = LossWatch()
        self._saves_when_possible = False
        self._epoch = 0

    # -- for users -----------------------------------------------------------------------------------

    def train(self, *, resume: bool | str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Train, save the model in `output_dir`, and return a summary of the run.

        Returns:
            A dict with `output_dir`, `steps`, `epochs`, `final_metrics`, `best_metrics`, `tokens`, `seconds`,
            `stopped_early` and `resumed_from`.
        """
        from .building import build

        started = time.monotonic()
        self._reset()
        self._check_output()
        checkpoint = find_checkpoint(self.output_dir, self.resume if resume is None else resume)
        state = None if checkpoint is None else read_state(checkpoint, len(self.dataset), self.settings)
        with output_folder(self.output_dir) if self._processes.is_first else nullcontext():
            self._trainer, self.model = build(self)
            self._trainer.wait_for_all()  # who still looks for a checkpoint must not find it moved
            if self._processes.is_first:
                self._begin(checkpoint)
            with self._closing():
                if state is not None:
                    self._take_up(checkpoint, state)
                with self._catching_ctrl_c():
                    self._trainer.run(None if state is None else state["training"])
                self._end()
                if self._processes.is_first:
                    self.save_model(self.output_dir)
                self._trainer.wait_for_all()
        return self._result(time.monotonic() - started, checkpoint)

    def _begin(self, checkpoint: Path | None) -> None:
        """Leave nothing in the folder that could be taken for this run's."""
        remove_half_written(self.output_dir)
        set_aside(self.output_dir, resumed=checkpoint)
        (self.output_dir / "result.json").unlink(missing_ok=True)
        write_json(self.output_dir / "settings.json", self.settings.as_dict(), indent=2)

    def _check_output(self) -> None:
        from ..models.saving import check_save_folder

        check_save_folder(self.output_dir, source=self.source, is_adapter=self.settings.use_lora)
        for source in (self.source, self.source.base):
            if source is not None and source.path is not None:
                check_apart(self.output_dir, source.path)

    def save_model(self, path: str | os.PathLike[str]) -> Path:
        """Save the trained model or adapter with its tokenizer to a folder that `load_model` can read."""
        from ..models.saving import save_model

        if self.model is None or self.current_iter == 0:
            raise ConfigError("there is no trained model to save yet: call train() first")
        target = check_output_dir(path)
        save_model(self.model.model, self.model.tokenizer, target, source=self.source)
        return target

    def state_dict(self) -> State:
        """Return everything that is needed to resume exactly, including the weights."""
        if self.model is None:
            raise ConfigError("there is no training state to save yet: call train() first")
        return {**self._state(), "weights": self.model.state_dict()}

    def load_state_dict(self, state_dict: State, /) -> None:
        """Load the weights and the progress of a state; `train(resume=path)` restores all of it."""
        if self.model is None:
            raise ConfigError("there is no model to load a state into yet: use train(resume=path)")
        self.model.load_state_dict(state_dict["weights"])
        self._load(state_dict["loop"])

    # -- building ------------------------------------------------------------------------------------

    def make_trainer(self, **parts: Any) -> Any:
        """Create TRL's trainer of this algorithm from its parts."""
        raise NotImplementedError

    def rows_for(self, tokenizer: Any, window: int | None) -> Any:
        """Return the rows to train on as a Hugging Face `Dataset`; `window` is the model's context length in tokens."""
        return self._learned_from(self.dataset)

    def _learned_from(self, dataset: Dataset) -> Any:
        """Without columns of the user's own, some of which TRL would take for what it makes of the texts."""
        from ..sources import to_hugging_face

        known = {*self.columns, *_FOR_TEMPLATES}
        return to_hugging_face(dataset).select_columns([name for name in dataset.column_names if name in known])

    # -- what the trainer tells ----------------------------------------------------------------------

    def fit_started(self) -> None:
        state = self._trainer.resumed
        self._trainer.take_up()
        for logger in self.loggers:
            logger.log_config({"max_iters": self._trainer.state.max_steps, **self.settings.as_dict()})
            logger.log_text("parameters", describe_parameters(self._trainer.model), self.current_iter)
        self._call("on_fit_start")
        if state is not None:
            load_named([*self.callbacks, self._watch], self._resumed_callbacks)

    def step_started(self) -> None:
        self.metrics, self.current_stage = {}, "train"
        self._call("on_iter_start")
        self._call("on_train_start")

    def logged(self, logs: Mapping[str, Any]) -> None:
        if any(name.startswith(_NOT_OF_A_STEP) for name in logs):
            return
        self.metrics |= {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}

    def trained(self) -> None:
        self._call("on_train_end")
        self._agree_to_stop()
        if self._validation_is_due():
            self._validate()

    def step_ended(self) -> None:
        self.current_iter = self._trainer.state.global_step
        if self.metrics:
            self._record.add(self.current_iter, self.metrics)
            for logger in wanting(self.loggers, LogLevel.PERIODIC):
                logger.log_metrics(self.metrics, self.current_iter)
        self._call("on_iter_end")
        self._agree_to_stop()
        self._save_if_due()

    def _agree_to_stop(self) -> None:
        """Several processes stop after the same step, whichever of them was asked to."""
        self._is_agreed_to_stop = self._trainer.is_wanted_by_any(self.should_stop)

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends after its current step."""
        return self._is_agreed_to_stop if self._processes.are_several else self.should_stop

    def _call(self, hook: Hook) -> None:
        assert self.model is not None
        if not self._processes.is_first:
            return
        run_hook([self._watch, *self.callbacks], hook, self, self.model)

    # -- validation ----------------------------------------------------------------------------------

    @property
    def val_every_n_iters(self) -> int | None:
        """The number of steps between validations, or None without validation."""
        return None if self.eval_dataset is None else self.settings.eval_steps or 1

    def _validation_is_due(self) -> bool:
        step, epoch = self._trainer.state.global_step, int(self._trainer.state.epoch or 0)
        is_new_epoch, self._epoch = epoch > self._epoch, epoch
        if self.eval_dataset is None:
            return False
        every = self.settings.eval_steps
        is_turn = step % every == 0 if every else is_new_epoch
        return is_turn or self._is_last(step)

    def _is_last(self, step: int) -> bool:
        """Whether the run ends with this step. What was sampled is trained on to its end before a run is stopped."""
        return step >= self._trainer.state.max_steps or (self.is_stopping and self._trainer.is_between_generations)

    def _validate(self) -> None:
        self.current_stage = "val"
        self._call("on_validate_start")
        self.metrics |= {f"val/{name}": value for name, value in validate(self, self._trainer).items()}
        self._call("on_validate_end")

    def judge(self) -> RewardFunction | None:
        """Return the reward that scores the answers to `eval_dataset`, or None if only the loss is measured."""
        return self.eval_reward_fn

    # -- checkpoints ---------------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        step, every = self.current_iter, self.settings.save_steps
        if (every and step % every == 0) or self._is_last(step):
            self._saves_when_possible = self._processes.is_first
        if self._saves_when_possible and (self._trainer.is_between_generations or self._is_last(step)):
            self._save()

    def _save(self) -> None:
        from ..models.saving import save_model

        assert self.model is not None
        if not math.isfinite(loss := self._trainer.loss_since_log):
            raise TrainingError(not_finite(self, loss))  # Such weights must not become the last checkpoint.
        model, tokenizer = self.model.model, self.model.tokenizer
        self._saves_when_possible = False
        path = write_checkpoint(
            self.output_dir,
            self.current_iter,
            self._state(),
            write_model=lambda folder: save_model(model, tokenizer, folder, source=self.source),
        )
        most = self.settings.save_total_limit
        keep_newest(self.output_dir, most)
        size = describe_size(folder_size(path))
        log.info(
            "saved the checkpoint of step %d to %s (%s; keeping the newest %d)", self.current_iter, path, size, most
        )

    def _state(self) -> State:
        return {
            "algorithm": self.algorithm,
            "settings": self.settings.as_dict(),
            "num_rows": len(self.dataset),
            "training": self._trainer.training_state(),
            "callbacks": {name: each.state_dict() for name, each in named([*self.callbacks, self._watch]).items()},
            "loggers": {name: each.state_dict() for name, each in named(self.loggers).items()},
            "loop": {
                "metrics": dict(self.metrics),
                "current_iter": self.current_iter,
                "epoch": self._epoch,
                "record": self._record.state_dict(),
            },
        }

    def _take_up(self, checkpoint: Path | None, state: State) -> None:
        assert self.model is not None
        assert checkpoint is not None
        if checkpoint.is_dir():
            self._trainer.load_weights(checkpoint)
        else:
            self.model.load_state_dict(state["weights"])
        load_named(self.loggers, state["loggers"])
        self._resumed_callbacks = state["callbacks"]
        self._load(state["loop"])
        log.info("resuming from step %d: %s", self.current_iter, checkpoint)

    def _load(self, loop: State) -> None:
        self.metrics, self.current_iter, self._epoch = dict(loop["metrics"]), loop["current_iter"], loop["epoch"]
        self._record.load_state_dict(loop["record"])

    # -- the end -------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self.current_iter == 0:
            raise ConfigError(
                f"there was nothing to train: {len(self.dataset)} rows are fewer than one step needs "
                f"({self.rows_per_step}); pass more rows, or lower batch_size"
            )
        self._call("on_fit_end")

    @property
    def max_iters(self) -> int | None:
        """The number of steps of the whole run, or None before it has started."""
        return None if self._trainer is None else int(self._trainer.state.max_steps) or None

    @property
    def rows_per_step(self) -> int:
        """The number of rows of the data set per optimiser step."""
        settings = self.settings
        return settings.per_device_train_batch_size * settings.gradient_accumulation_steps * processes().count

    @contextmanager
    def _catching_ctrl_c(self) -> Iterator[None]:
        """Finish the step at the first Ctrl-C, unless somebody else handles the signal; stop at once at a second."""
        is_ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if not is_ours:
            yield
            return
        asked = threading.Event()

        def ask(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # first: a second one must not wait for a lock
            asked.set()
            self.should_stop = True
            log.warning(
                "stopping after this step and writing a checkpoint; press Ctrl-C again to stop now and lose the step"
            )

        signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if asked.is_set():
            log.warning("stopped at step %d; pass resume=True to continue from there", self.current_iter)
            raise KeyboardInterrupt

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Whatever happens, the loggers know how it ended."""
        status: FinishStatus = "failed"
        try:
            yield
            status = "succeeded"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            for logger in self.loggers:
                logger.finish(status)

    def _result(self, seconds: float, checkpoint: Path | None) -> dict[str, Any]:
        state = self._trainer.state
        result = {
            "output_dir": str(self.settings.output_dir),
            "steps": self.current_iter,
            "epochs": float(state.epoch or 0.0),
            "final_metrics": dict(self._record.final),
            "best_metrics": dict(self._record.best),
            "tokens": self._trainer.num_tokens,
            "seconds": seconds,
            "stopped_early": self.current_iter < state.max_steps,
            "resumed_from": None if checkpoint is None else str(checkpoint),
        }
        if self._processes.is_first:
            write_json(self.output_dir / "result.json", result, indent=2)
        return result


def _callbacks(given: Callback | Sequence[Callback] | None) -> list[Callback]:
    callbacks: list[Any] = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for each in callbacks:
        if not isinstance(each, Callback):
            raise ConfigError(f"callbacks has {each!r:.80}, which is not a Callback: derive its class from Callback")
    return callbacks
