"""Callbacks and loggers hear of the iterations that an algorithm reports."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sharpen.algorithm import Algorithm, Baseline, algo
from sharpen.callbacks import Callback, Checkpoint, EarlyStopping, load_state
from sharpen.errors import ComponentError, ComponentTypeError, ConfigError
from sharpen.loggers import Logger, LogLevel
from tests.errors import raises

from .scenes import double, small_trainer


class Watching(Callback):
    """Notes every hook, with the iteration and the metrics at that moment."""

    HOOKS = ("fit", "iter", "train", "validate")

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, tuple[str, ...]]] = []
        self.loops: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def note(loop: Any, trained: Any) -> None:
            self.seen.append((name, loop.current_iter, tuple(sorted(loop.metrics))))
            self.loops.append((loop, trained))

        return note


class Listening(Logger):
    def __init__(self, loglevel: int = LogLevel.PERIODIC) -> None:
        super().__init__(loglevel)
        self.configs: list[Mapping[str, Any]] = []
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.ends: list[str] = []

    def log_config(self, config: Mapping[str, Any]) -> None:
        self.configs.append(config)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.metrics.append((step, dict(metrics)))

    def finish(self, status: str = "succeeded") -> None:
        self.ends.append(status)


class Counting(Algorithm[Any]):
    """Reports its iterations, and fails once before the one that is asked for."""

    def __init__(self, rounds: int, *, fails_at: int | None = None) -> None:
        self.rounds, self.fails_at, self.done = rounds, fails_at, 0

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        while self.done < self.rounds and not self.should_stop:
            if self.done == self.fails_at:
                raise RuntimeError("lost")
            self.done += 1
            self.report_iteration({"loss": 1 / self.done}, val_metrics={"score": -float(self.done)})
            self.checkpoint()

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def steps_in(path: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, path.read_text().splitlines())
    return [line for line in lines if "step" in line]


def test_hooks_are_called_in_their_order_with_the_trainer_and_the_algorithm() -> None:
    watching, algorithm = Watching(), Counting(1)
    trainer = small_trainer(algorithm=algorithm, callbacks=watching)
    trainer.fit(double)
    both = ("train/loss", "val/score")
    assert watching.seen == [
        ("on_fit_start", 0, ()),
        ("on_iter_start", 0, ()),
        ("on_train_start", 0, ()),
        ("on_train_end", 0, ("train/loss",)),
        ("on_validate_start", 0, ("train/loss",)),
        ("on_validate_end", 0, both),
        ("on_iter_end", 1, both),
        ("on_fit_end", 1, both),
    ]
    assert all(loop is trainer and trained is algorithm for loop, trained in watching.loops)
    assert (trainer.current_iter, trainer.metrics) == (1, {"train/loss": 1.0, "val/score": -1.0})


def test_loggers_get_the_settings_the_metrics_of_every_iteration_and_the_end() -> None:
    listening = Listening()
    result = small_trainer(algorithm=Counting(2), loggers=[listening]).fit(double)
    (config,) = listening.configs
    assert config["components"]["algorithm"]["class"].endswith("Counting")
    assert listening.metrics == [
        (1, {"train/loss": 1.0, "val/score": -1.0}),
        (2, {"train/loss": 0.5, "val/score": -2.0}),
    ]
    assert listening.ends == ["succeeded"]
    assert result.metrics["train/loss"] == 0.5


def test_files_lie_in_the_folder_of_the_run_where_no_other_is_given() -> None:
    trainer = small_trainer(
        algorithm=Counting(2), loggers="csv", callbacks=[{"type": "Checkpoint", "every_n_iters": 1}]
    )
    folder = trainer.fit(double).run_dir
    assert folder is not None
    assert (folder / "metrics.csv").read_text().splitlines()[1:] == ["1,1.0,-1.0", "2,0.5,-2.0"]
    assert [line["train/loss"] for line in steps_in(folder / "metrics.jsonl")] == [1.0, 0.5]
    saved = load_state(folder / "checkpoints" / "latest.pth")
    assert (saved["algorithm"], saved["current_iter"]) == ({"done": 2}, 2)


def test_a_logger_that_writes_to_the_metrics_of_the_run_writes_every_step_once() -> None:
    folder = small_trainer(algorithm=Counting(2), loggers="jsonl").fit(double).run_dir
    assert folder is not None
    lines = steps_in(folder / "metrics.jsonl")
    assert [line["step"] for line in lines if "train/loss" in line] == [1, 2]
    assert lines[-1]["status"] == "succeeded"


def test_early_stopping_ends_a_baseline_of_many_epochs() -> None:
    stopping, listening = EarlyStopping(monitor="val/reward_mean", patience=2), Listening()
    trainer = small_trainer(algorithm=Baseline(n_epochs=50), callbacks=[stopping], loggers=[listening])
    result = trainer.fit(double, [1, 2], [3])
    assert [step for step, _ in listening.metrics] == [1, 2, 3]
    assert listening.metrics[0][1]["train/reward_mean"] == 3
    assert listening.metrics[0][1]["val/reward_mean"] == 6
    assert listening.metrics[-1][1]["train/rollouts"] == 2
    assert result.metrics["rollouts"] == 9


def test_a_resumed_run_goes_on_with_its_callbacks_and_loggers(tmp_path: Path) -> None:
    def parts() -> dict[str, Any]:
        return {"callbacks": [EarlyStopping("val/score", patience=9), Watching()], "loggers": "csv"}

    failing = small_trainer(algorithm=Counting(4, fails_at=2), **parts())
    with raises(RuntimeError, "lost"):
        failing.fit(double)
    assert failing.result is not None
    again = small_trainer(algorithm=Counting(4), **parts())
    folder = again.fit(double, resume=failing.result.run_dir).run_dir
    assert folder is not None
    stopping, watching = again._loop.callbacks
    assert isinstance(stopping, EarlyStopping)
    assert isinstance(watching, Watching)
    assert (stopping.best, stopping.wait) == (-1.0, 3)
    assert [number for hook, number, _ in watching.seen if hook == "on_iter_end"] == [3, 4]
    rows = (folder / "metrics.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["1", "2", "3", "4"]
    assert [line["step"] for line in steps_in(folder / "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_run_that_a_callback_stopped_stays_stopped_when_it_is_resumed() -> None:
    stopping = EarlyStopping("val/score")
    folder = small_trainer(algorithm=Counting(9), callbacks=stopping).fit(double).run_dir
    again = small_trainer(algorithm=Counting(9), callbacks=EarlyStopping("val/score"))
    again.fit(double, resume=folder)
    assert again.current_iter == 2


def test_an_algorithm_that_starts_again_goes_on_from_the_iteration_of_its_checkpoint() -> None:
    class Once(Counting):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            self.fails_at = None

    listening = Listening()
    small_trainer(algorithm=Once(3, fails_at=1), algorithm_retries=1, loggers=listening).fit(double)
    assert [step for step, _ in listening.metrics] == [1, 2, 3]


def test_a_failure_finishes_the_loggers_as_failed() -> None:
    listening = Listening()
    with raises(RuntimeError, "lost"):
        small_trainer(algorithm=Counting(2, fails_at=1), loggers=listening).fit(double)
    assert listening.ends == ["failed"]


def test_an_error_in_a_callback_ends_the_run_also_where_the_algorithm_catches_it() -> None:
    class Failing(Callback):
        def on_iter_end(self, loop: Any, trained: Any, /) -> None:
            raise ValueError("not this one")

    @algo
    def careless(*, report_iteration: Any) -> None:
        with raises(ValueError, "not this one"):
            report_iteration({"loss": 1.0})

    listening = Listening()
    with raises(ValueError, "not this one"):
        small_trainer(algorithm=careless, callbacks=Failing(), loggers=listening).fit(double)
    assert listening.ends == ["failed"]


def test_a_run_in_processes_builds_its_callbacks_where_the_algorithm_runs(tmp_path: Path) -> None:
    trainer = small_trainer(
        algorithm=Counting(2), strategy="cs", n_runners=1, callbacks=Checkpoint(tmp_path / "kept"), loggers="csv"
    )
    folder = trainer.fit(double).run_dir
    assert folder is not None
    assert (tmp_path / "kept" / "002.pth").exists()
    assert (folder / "metrics.csv").exists()


def test_what_can_be_no_callback_is_refused_at_once() -> None:
    with raises(ComponentError, "callbacks"):
        small_trainer(callbacks=[3])


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"callbacks": ["EarlyStoping"]}, ("EarlyStoping", "EarlyStopping")),
        ({"callbacks": {"type": "Chekpoint"}}, ("Chekpoint", "Checkpoint")),
        ({"loggers": ["cvs"]}, ("cvs", "csv")),
        ({"loggers": "nothing near"}, ("nothing near", "ConsoleLogger")),
        ({"callbacks": "sharpen.callbacks.EarlyStoping"}, ("EarlyStopping",)),
        ({"callbacks": [{"patience": 3}]}, ("type",)),
    ],
)
def test_a_misspelt_name_is_refused_by_the_constructor(parts: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ComponentError, *named):
        small_trainer(algorithm=Counting(1), **parts)


def test_a_part_of_another_kind_is_refused_by_the_constructor() -> None:
    with raises(ComponentTypeError, "CsvLogger", "Callback"):
        small_trainer(algorithm=Counting(1), callbacks="csv")


def test_names_and_paths_are_not_imported_by_the_constructor() -> None:
    before = set(sys.modules)
    small_trainer(algorithm=Counting(1), callbacks="my_package.parts.Mine", loggers=["wandb", {"type": "mlflow"}])
    assert not {"wandb", "mlflow", "my_package"} & (set(sys.modules) - before)


@pytest.mark.parametrize("parts", [{"callbacks": Watching()}, {"loggers": "csv"}])
def test_without_an_algorithm_callbacks_and_loggers_are_refused(parts: dict[str, Any]) -> None:
    trainer = small_trainer(**parts)
    with raises(ConfigError, next(iter(parts)), "dev("):
        trainer.fit(double)
    assert trainer.dev(double, [1.0]).status == "succeeded"


def test_a_logger_hears_of_what_is_not_below_its_level() -> None:
    debug, quiet = Listening(LogLevel.DEBUG), Listening(LogLevel.INFO)
    small_trainer(algorithm=Counting(2), loggers=[debug, quiet]).fit(double)
    assert [len(debug.metrics), len(quiet.metrics)] == [2, 0]  # metrics of iterations are periodic
    assert debug.ends == quiet.ends == ["succeeded"]


def test_the_metrics_of_the_run_are_kept_whatever_level_a_logger_has() -> None:
    spec = {"type": "jsonl", "loglevel": LogLevel.CRITICAL}
    folder = small_trainer(algorithm=Counting(2), loggers=spec).fit(double).run_dir
    assert folder is not None
    assert [line["step"] for line in steps_in(folder / "metrics.jsonl") if "train/loss" in line] == [1, 2]


def test_a_logger_that_does_not_call_our_constructor_hears_of_iterations() -> None:
    class Plain(Logger):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
            self.steps.append(step)

    plain = Plain()
    small_trainer(algorithm=Counting(2), loggers=plain).fit(double)
    assert plain.steps == [1, 2]
