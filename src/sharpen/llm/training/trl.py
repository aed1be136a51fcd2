"""TRL's trainers, extended to report to the loop of a wrapper, and to resume to the same numbers.

What TRL and transformers leave out of a checkpoint is kept here: sums of metrics between two logs, the order of the
data in later epochs of GRPO, a reference model that follows. Nothing is pickled.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from transformers import TrainerCallback, set_seed
from transformers.trainer_pt_utils import LengthGroupedSampler
from trl.trainer.utils import RepeatSampler

from ...callbacks import restore_rng, rng_state
from ...callbacks.base import State
from ...errors import ConfigError, text_of
from ..errors import ModelError

_COUNTERS = ("_total_train_tokens", "_step", "entropy_coef", "_last_world_entropy", "_globalstep_last_logged")
_SUMS = ("_tr_loss", "_total_loss_scalar")


class Watcher(Protocol):
    """The loop that a trainer reports to."""

    def fit_started(self) -> None: ...
    def step_started(self) -> None: ...
    def logged(self, logs: Mapping[str, Any]) -> None: ...
    def trained(self) -> None: ...
    def step_ended(self) -> None: ...
    @property
    def is_stopping(self) -> bool: ...


class Bridge(TrainerCallback):
    """Passes what transformers reports on to the loop."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.watcher.fit_started()

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.watcher.step_started()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **parts: Any) -> None:
        self.watcher.logged(logs or {})


class Resumable:
    """A trainer whose steps are watched and whose state can be taken out and put back."""

    watcher: Watcher
    resumed: State | None = None
    _last_step = -1

    # -- what transformers calls ---------------------------------------------------------------------

    def _maybe_log_save_evaluate(self: Any, *args: Any, **options: Any) -> None:
        """After each step, and once more after each epoch. The last step is always logged."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_log = True
        super()._maybe_log_save_evaluate(*args, **options)  # type: ignore[misc]  # only logs: we evaluate and save
        if self.state.global_step == self._last_step:
            return
        self._last_step = self.state.global_step
        self.watcher.trained()
        self.watcher.step_ended()
        if self.watcher.is_stopping and self.is_between_generations:
            self.control.should_training_stop = True

    def compute_loss(self: Any, *args: Any, **options: Any) -> Any:
        """Losses read some settings, such as `loss_type`, only here; rewards are computed elsewhere."""
        try:
            return super().compute_loss(*args, **options)  # type: ignore[misc]
        except ValueError as error:
            raise ConfigError(f"TRL rejected these settings: {text_of(error)}") from error

    def create_scheduler(self: Any, num_training_steps: int, *args: Any, **options: Any) -> Any:
        # A share is rounded down: the first step of a warmup has the rate 0, which in a short run is the whole run.
        if 0 < self.args.warmup_steps < 1:
            self.args.warmup_steps = int(self.args.warmup_steps * num_training_steps + 1e-9)
        try:
            return super().create_scheduler(num_training_steps, *args, **options)  # type: ignore[misc]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the learning-rate scheduler rejected lr_scheduler_kwargs: {text_of(error)}") from error

    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        """The weights are there already: see `load_weights`."""

    def _load_optimizer_and_scheduler(self: Any, checkpoint: str | None) -> None:
        if self.resumed is not None:
            self.optimizer.load_state_dict(self.resumed["optimizer"])
            self.lr_scheduler.load_state_dict(self.resumed["scheduler"])
            self._take_rate_of_schedule()

    def _take_rate_of_schedule(self: Any) -> None:
        """The rate of the next step, which is another one than was saved where the run has become longer."""
        schedule = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        for group, base, rate in zip(
            self.optimizer.param_groups, schedule.base_lrs, getattr(schedule, "lr_lambdas", []), strict=False
        ):
            group["lr"] = base * rate(schedule.last_epoch)
        schedule._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _load_scaler(self: Any, checkpoint: str | None) -> None:
        if self.resumed is not None and self.resumed["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(self.resumed["scaler"])

    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        if self.resumed is None:
            return
        if self.accelerator.is_main_process:
            restore_rng(self.resumed["rng"])
        else:  # the numbers of the first process would make this one sample the same
            set_seed(self.args.seed + self.state.global_step + 1009 * self.accelerator.process_index)

    def _get_train_sampler(self: Any, *args: Any, **options: Any) -> Any:
        """Some samplers draw each epoch's order from one stream: a resumed run takes it up where it was."""
        sampler = super()._get_train_sampler(*args, **options)  # type: ignore[misc]
        if isinstance(sampler, LengthGroupedSampler):  # it would draw from the stream of everybody
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            sampler.generator = torch.Generator().manual_seed(seed)
            num_rows = len(sampler)
        elif isinstance(sampler, RepeatSampler) and sampler.shuffle:
            num_rows = sampler.num_samples
        else:
            return sampler
        for _ in range(0 if self.resumed is None else int(self.resumed["trainer"]["epoch"] or 0)):
            torch.randperm(num_rows, generator=sampler.generator)
        return sampler

    # -- state ---------------------------------------------------------------------------------------

    def load_weights(self: Any, folder: Path) -> None:
        """Take over the weights, or the adapter, of a checkpoint folder."""
        try:
            super()._load_from_checkpoint(str(folder))  # type: ignore[misc]
        except (RuntimeError, ValueError, LookupError, SafetensorError) as error:
            raise ModelError(f"the weights in {str(folder)!r} do not match this model: {text_of(error)}") from error

    def _issue_warnings_after_load(self: Any, load_result: Any) -> None:
        """transformers would only warn that weights are missing, also of tied ones, which a file holds once."""
        missing = set(load_result.missing_keys) - set(self.model.all_tied_weights_keys)
        if wrong := sorted(missing | set(load_result.unexpected_keys)):
            raise LookupError(f"{len(wrong)} weights are missing or unknown, such as {wrong[0]!r}")

    def training_state(self: Any) -> State:
        """Everything but the weights."""
        scaler = self.accelerator.scaler
        follows = getattr(self.args, "sync_ref_model", False) and getattr(self, "ref_model", None) is not None
        return {
            "trainer": json.loads(json.dumps(asdict(self.state) | {"stateful_callbacks": {}})),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.lr_scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "rng": rng_state(),
            "counters": {name: getattr(self, name) for name in _COUNTERS if hasattr(self, name)},
            "sums": {name: float(getattr(self, name)) for name in _SUMS},
            "metrics": {mode: dict(values) for mode, values in getattr(self, "_metrics", {}).items()},
            "reference": dict(self.ref_model.state_dict()) if follows else None,
        }

    def take_up(self: Any) -> None:
        """Put back what training has set to zero at its start."""
        state = self.resumed
        if state is None:
            return
        for name, value in state["counters"].items():
            setattr(self, name, value)
        self._tr_loss.fill_(state["sums"]["_tr_loss"])
        self._total_loss_scalar = state["sums"]["_total_loss_scalar"]
        self._last_step = self.state.global_step
        for mode, values in state["metrics"].items():
            self._metrics[mode] = defaultdict(list, {name: list(each) for name, each in values.items()})
        if state["reference"] is not None:
            self.ref_model.load_state_dict(state["reference"])

    def is_wanted_by_any(self: Any, wish: bool) -> bool:
        """Whether some process wishes it. All ask at the same time."""
        if self.accelerator.num_processes == 1:
            return wish
        return bool(self.accelerator.reduce(torch.tensor(int(wish), device=self.accelerator.device)) > 0)

    def wait_for_all(self: Any) -> None:
        """Go on when every process is here."""
        self.accelerator.wait_for_everyone()

    def run(self: Any, resumed: State | None) -> None:
        """Train; with a state, go on from it."""
        self.resumed = resumed
        if resumed is None:
            self.train()
            return
        with _trainer_state_folder(resumed["trainer"]) as folder:
            self.train(resume_from_checkpoint=folder)

    @property
    def num_tokens(self: Any) -> int:
        """The tokens that were trained on so far."""
        return int(getattr(self, "_total_train_tokens", 0) or self.state.num_input_tokens_seen)

    @property
    def loss_since_log(self: Any) -> float:
        """The sum of the losses since the last log."""
        return float(self._tr_loss)

    @property
    def is_between_generations(self: Any) -> bool:
        """Whether no sampled completions wait to be trained on: only then can a run be resumed to the same numbers."""
        every = getattr(self.args, "steps_per_generation", None)
        return every is None or self._step % (every * self.num_iterations) == 0


def resumable(kind: type) -> Any:
    """Return a trainer class of TRL, watched and resumable."""
    return type(kind.__name__, (Resumable, kind), {})


@contextmanager
def _trainer_state_folder(state: Mapping[str, Any]) -> Iterator[str]:
    """A folder with the one file that transformers insists on reading by itself."""
    with tempfile.TemporaryDirectory(prefix="sharpen-resume-") as folder:
        Path(folder, "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
        yield folder
