"""Hooks, names of callbacks, random generators."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sharpen.callbacks import (
    Callback,
    Checkpoint,
    EarlyStopping,
    MetricsWriter,
    load_state,
    named,
    restore_rng,
    rng_state,
    run_hook,
    save_state,
)
from sharpen.errors import ConfigError
from tests.errors import raises

from .loops import CountingLoop


class Notes(Callback):
    """Writes down what is called."""

    def __init__(self, notes: list[Any], name: str) -> None:
        self._notes, self._name = notes, name

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda loop, trained: self._notes.append((self._name, name, loop, trained))
        return super().__getattribute__(name)


def test_a_hook_is_called_on_all_in_order_with_loop_and_trained() -> None:
    notes: list[Any] = []
    loop = CountingLoop([Notes(notes, "a"), Notes(notes, "b")])
    run_hook(loop.callbacks, "on_train_end", loop, loop.trained)
    assert notes == [("a", "on_train_end", loop, loop.trained), ("b", "on_train_end", loop, loop.trained)]


def test_an_error_in_a_hook_passes_and_the_callbacks_after_it_are_not_called() -> None:
    class Broken(Callback):
        def on_iter_end(self, *_: object) -> None:
            raise RuntimeError("broken hook")

    notes: list[Any] = []
    loop = CountingLoop([Broken(), Notes(notes, "after")])
    with raises(RuntimeError, "broken hook"):
        run_hook(loop.callbacks, "on_iter_end", loop, loop.trained)
    assert notes == []


def test_a_plain_callback_does_nothing_and_remembers_nothing() -> None:
    callback = Callback()
    loop = CountingLoop([callback]).fit(2)
    assert loop.current_iter == 2
    assert callback.state_dict() == {}
    callback.load_state_dict({})


def test_names_are_class_names_in_lower_case_and_repeated_ones_are_numbered() -> None:
    class Callback1(Callback):
        pass

    things = [Callback(), EarlyStopping(), Callback(), Callback1(), Callback()]
    assert list(named(things)) == ["callback", "earlystopping", "callback1", "callback11", "callback2"]
    assert list(named(things).values()) == things
    assert named([]) == {}


def draw() -> tuple[Any, ...]:
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(2).tolist()


def test_random_numbers_go_on_where_they_were_saved(tmp_path: Path) -> None:
    np.random.randn(), random.gauss(0, 1)  # one half of a pair of normal numbers is kept for the next call
    save_state(tmp_path / "rng", rng_state())
    expected = draw()
    draw()
    restore_rng(load_state(tmp_path / "rng"))
    assert draw() == expected


def test_a_state_saved_without_torch_leaves_its_generator_alone() -> None:
    state = rng_state()
    del state["torch"], state["numpy"]
    torch.manual_seed(3)
    expected = torch.rand(1).item()
    torch.manual_seed(3)
    restore_rng(state)
    assert torch.rand(1).item() == expected


def test_metrics_of_each_iteration_are_in_two_tables(tmp_path: Path) -> None:
    CountingLoop([MetricsWriter(tmp_path / "new")], rewards=[1.0, 2.0]).fit(2)
    assert (tmp_path / "new" / "train_result.csv").read_text() == "iter,loss\n1,1.0\n2,0.5\n"
    assert (tmp_path / "new" / "validation_result.csv").read_text() == "iter,loss,val/reward\n1,1.0,1.0\n2,0.5,2.0\n"


def test_a_new_run_replaces_the_tables_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    CountingLoop([MetricsWriter(tmp_path)], rewards=[9.0]).fit(5)
    rewards = [1.0, 2.0, 3.0]
    CountingLoop([MetricsWriter(tmp_path), Checkpoint(tmp_path, every_n_iters=1)], rewards=rewards).fit(3)
    again = CountingLoop([MetricsWriter(tmp_path), Checkpoint(tmp_path)], rewards=rewards)
    again.fit(3, state=load_state(tmp_path / "001.pth"))  # which does not know the rows 2 and 3
    whole = tmp_path / "whole"
    CountingLoop([MetricsWriter(whole)], rewards=rewards).fit(3)
    for name in ("train_result.csv", "validation_result.csv"):
        assert (tmp_path / name).read_text() == (whole / name).read_text()


def test_a_misspelt_hook_is_refused_with_the_nearest_one() -> None:
    with raises(ConfigError, "Mine", "on_validation_end", "on_validate_end"):

        class Mine(Callback):
            def on_validation_end(self, loop: Any, trained: Any) -> None: ...

    class Other:
        def on_message(self) -> None: ...

    class Both(Callback, Other):  # a class of another kind may have such methods
        on_screen = True

        def on_message(self) -> None: ...

        def on_iter_end(self, loop: Any, trained: Any) -> None: ...

    assert Both().on_screen
