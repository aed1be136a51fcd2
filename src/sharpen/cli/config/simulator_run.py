"""A run of kind `simulator`: trains a policy in a run folder, with metrics, episodes and checkpoints; and evaluates a
checkpoint on initial states."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...callbacks import Callback, Checkpoint
from ...components.paths import class_path
from ...errors import ConfigError
from ...loggers import JsonlLogger
from ...rl.logging import LogWriter
from ...rl.writers import EpisodesLogger
from ...trainer.loop import make_callbacks, make_loggers
from ...trainer.status import RunResult
from .recorded_run import RecordedRun
from .simulator import STATES, listener_specs, make_vessel, read_states, trainer_settings

if TYPE_CHECKING:
    from ...rl.logging import Contents
    from .train_config import TrainConfig

LATEST = Path("checkpoints") / "latest.pth"
SAVE_SECONDS = 10.0
_JSONL = ("jsonl", "JsonlLogger")


def train_policy(config: "TrainConfig", *, resume: Path | None = None) -> RunResult:
    """Train a policy; Ctrl-C stops the run after the current iteration and saves a checkpoint."""
    config.require("simulator")
    vessel = make_vessel(config)  # errors are raised before a run folder is created
    run = RecordedRun(config, default_name=type(vessel.policy).__name__.lower(), resume=resume)
    return run.execute(_described(config, vessel), lambda folder: _train(config, vessel, folder, run))


def _train(config: "TrainConfig", vessel: Any, folder: Path, run: RecordedRun) -> Mapping[str, float]:
    from ...rl import Trainer

    stopping = _Stopping()
    episodes = EpisodesLogger(folder)
    callbacks = _callbacks(config, folder)
    with config.locating():
        trainer = Trainer(
            **trainer_settings(config),
            callbacks=[*callbacks, stopping],
            loggers=[*_loggers(config, folder), JsonlLogger(folder), episodes],
        )
    episodes.follow(trainer)
    stopping.checkpoint = next(each for each in callbacks if isinstance(each, Checkpoint))
    saved = folder / LATEST
    if run.is_resumed and not saved.exists():
        raise ConfigError(f"the run in {str(folder)!r} has no checkpoint to resume from: start a new run")
    with stopping.listening():
        trainer.fit(vessel, ckpt_path=saved if run.is_resumed else None)
    run.warnings += trainer.warnings
    return {**stopping.metrics, **trainer.metrics, "run/steps": float(trainer.current_step)}


def _callbacks(config: "TrainConfig", folder: Path) -> list[Callback]:
    """Return the configured callbacks, and a checkpoint so that the run can be resumed."""
    found = make_callbacks(listener_specs(config, "callbacks"), folder)
    place = (folder / LATEST).parent
    if not any(isinstance(each, Checkpoint) and each.dirpath == place and each.save_latest for each in found):
        has_validations = config.values.get("val_every_n_iters") is not None
        found.append(
            Checkpoint(place, time_interval=SAVE_SECONDS, keep_last=1, keep_best=1 if has_validations else None)
        )
    return found


def _loggers(config: "TrainConfig", folder: Path) -> list[Any]:
    given = listener_specs(config, "loggers") if "loggers" in config.values else ["console"]
    kinds = [each.get("type") if isinstance(each, Mapping) else each for each in given]
    wanted = [each for each, kind in zip(given, kinds, strict=True) if kind not in _JSONL]  # there is one anyway
    writers = [each for each in wanted if _is_writer(each)]
    others = [each for each in wanted if each not in writers]
    made = [config.specs.build(each, ("loggers",), {"output_dir": folder}) for each in writers]
    return [*make_loggers(others, folder), *made]


def _is_writer(spec: Any) -> bool:
    kind = spec.get("type") if isinstance(spec, Mapping) else spec
    return isinstance(kind, type) and issubclass(kind, LogWriter)


class _Stopping(Callback):
    """Stops after the current iteration on Ctrl-C, and at once on a second one. It also keeps the latest metrics."""

    def __init__(self) -> None:
        self.checkpoint: Checkpoint | None = None
        self.metrics: dict[str, float] = {}
        self._is_asked = False

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        self.metrics |= loop.metrics
        if not self._is_asked:
            return
        if self.checkpoint is not None:
            self.checkpoint.save(loop)
        raise KeyboardInterrupt

    @contextmanager
    def listening(self) -> Iterator[None]:
        is_ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if not is_ours:
            yield
            return
        signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _described(config: "TrainConfig", vessel: Any) -> dict[str, Any]:
    sizes = {key.partition("_")[0]: getattr(vessel, key, None) for key in STATES}
    simulator = getattr(vessel.simulator_fn, "func", vessel.simulator_fn)
    return {
        "agent": {"class": class_path(vessel), "name": getattr(simulator, "__name__", type(simulator).__name__)},
        "components": {"algorithm": {"class": class_path(vessel.policy)}},
        "settings": trainer_settings(config),
        "datasets": {
            name: None if each is None else {"class": class_path(each), "size": len(each)}
            for name, each in sizes.items()
        },
    }


# -- playing -----------------------------------------------------------------------------------------


class _Rewards(LogWriter):
    """The reward and the length of each episode."""

    def __init__(self) -> None:
        super().__init__()
        self.rewards: list[float] = []
        self.lengths: list[int] = []

    def log_episode(self, length: int, rewards: list[float], contents: "list[Contents]") -> None:
        self.rewards.append(float(sum(rewards)))
        self.lengths.append(int(length))


def play_states(config: "TrainConfig", stage: str, checkpoint: Path | None) -> dict[str, Any]:
    """Play every initial state of a stage once, and return the rewards of the episodes and the metrics."""
    from ...rl import Trainer

    config.require("simulator")
    vessel = make_vessel(config)
    if checkpoint is not None:
        vessel.policy.load_state_dict(Trainer.get_policy_state_dict(checkpoint))
    key = f"{stage}_initial_states"
    states = read_states(config, key) if key in config.values else getattr(vessel, key, None)
    if states is None:
        raise ConfigError(f"{config.path.name} has no {key}: add it, or choose another --dataset")
    vessel.test_initial_states = states
    settings = {key: value for key, value in trainer_settings(config).items() if key not in _OF_TRAINING}
    rewards = _Rewards()
    trainer = Trainer(**settings, loggers=[rewards])
    trainer.test(vessel)
    return {"rewards": rewards.rewards, "lengths": rewards.lengths, "metrics": dict(trainer.metrics)}


_OF_TRAINING = ("max_iters", "max_steps", "val_every_n_iters")
