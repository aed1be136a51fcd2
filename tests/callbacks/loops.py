"""A loop that counts, to hang callbacks on."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sharpen.callbacks import Callback, named, run_hook


class Weights:
    """What is trained: one number that grows by 1 in an iteration."""

    def __init__(self) -> None:
        self.values = np.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}  # the living array: who keeps it must copy

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.values[:] = state_dict["values"]


class CountingLoop:
    """Trains, validates in every iteration, and calls the hooks in the stated order."""

    def __init__(self, callbacks: Sequence[Callback] = (), *, rewards: Iterable[float] = ()) -> None:
        self.callbacks = list(callbacks)
        self.rewards = list(rewards)
        self.metrics: dict[str, float] = {}
        self.current_iter = 0
        self.current_stage = "train"
        self.should_stop = False
        self.trained = Weights()

    def fit(self, iterations: int, *, state: dict[str, Any] | None = None) -> "CountingLoop":
        self._hook("on_fit_start")
        if state is not None:
            self.load_state_dict(state)
        while self.current_iter < iterations and not self.should_stop:
            self._iterate()
        self._hook("on_fit_end")
        return self

    def _iterate(self) -> None:
        self.metrics.clear()
        self._hook("on_iter_start")
        self.current_stage = "train"
        self._hook("on_train_start")
        self.trained.values += 1
        self.metrics["loss"] = 1.0 / float(self.trained.values[0])
        self._hook("on_train_end")
        self.current_stage = "val"
        self._hook("on_validate_start")
        if self.rewards:
            self.metrics["val/reward"] = self.rewards[self.current_iter % len(self.rewards)]
        self._hook("on_validate_end")
        self.current_iter += 1
        self._hook("on_iter_end")

    def _hook(self, name: Any) -> None:
        run_hook(self.callbacks, name, self, self.trained)

    def state_dict(self) -> dict[str, Any]:
        return {
            "trained": self.trained.state_dict(),
            "callbacks": {name: each.state_dict() for name, each in named(self.callbacks).items()},
            "current_iter": self.current_iter,
            "metrics": self.metrics,
            "should_stop": self.should_stop,
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.trained.load_state_dict(state_dict["trained"])
        for name, each in named(self.callbacks).items():
            each.load_state_dict(state_dict["callbacks"][name])
        self.current_iter = state_dict["current_iter"]
        self.metrics = dict(state_dict["metrics"])
