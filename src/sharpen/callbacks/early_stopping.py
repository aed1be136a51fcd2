"""`EarlyStopping`: ends a run that no longer improves."""

import logging
import math
from typing import Literal, get_args

from ..checkpoints import copy_tree
from ..checks import check_choice, check_int
from .base import Callback, Loop, State, Trained, has_validations

log = logging.getLogger(__name__)

Mode = Literal["max", "min"]


class EarlyStopping(Callback):
    """Stops after `patience` validations in a row (0: after one) without a better `monitor`.

    Args:
        monitor: The metric to watch.
        min_delta: Better means better by more than this.
        patience: How many validations without a better value to wait for.
        mode: Whether a larger (`max`) or a smaller (`min`) value is better.
        baseline: If given, a value must also be better than this.
        restore_best_weights: Whether to restore the state of the best validation when this callback stops the run; a
            run that ends for another reason keeps its last state, so that it can be extended.
    """

    def __init__(
        self,
        monitor: str = "reward",
        min_delta: float = 0.0,
        patience: int = 0,
        mode: Mode = "max",
        baseline: float | None = None,
        restore_best_weights: bool = False,
    ) -> None:
        check_choice("mode", mode, get_args(Mode))
        self.monitor = monitor
        self.min_delta = abs(min_delta)
        self.patience = check_int("patience", patience, at_least=0)
        self.mode = mode
        self.baseline = baseline
        self.restore_best_weights = restore_best_weights
        self._reset()

    def _reset(self) -> None:
        self.wait = 0
        self.best = -math.inf if self.mode == "max" else math.inf
        self.best_iter = 0
        self.stopped_iter = 0
        self.best_weights: State | None = None

    def on_fit_start(self, loop: Loop, trained: Trained) -> None:
        self._reset()
        if not has_validations(loop):
            log.warning("early stopping needs validations, but there will be none: set val_every_n_iters")

    def on_validate_end(self, loop: Loop, trained: Trained) -> None:
        current = loop.metrics.get(self.monitor)
        if current is None:
            known = ", ".join(sorted(loop.metrics)) or "none yet"
            log.warning("early stopping monitors %r, which is not a metric of this run; known: %s", self.monitor, known)
            return
        self.wait += 1
        is_best = self._is_better(current, self.best)
        if is_best or (self.restore_best_weights and self.best_weights is None):
            self._remember(current, loop, trained, is_best=is_best)
        if is_best and (self.baseline is None or self._is_better(current, self.baseline)):
            self.wait = 0
        elif self.wait >= self.patience and loop.current_iter > 0:
            self._stop(loop, trained)

    def _is_better(self, value: float, reference: float) -> bool:
        gain = value - reference if self.mode == "max" else reference - value
        return gain > self.min_delta

    def _remember(self, current: float, loop: Loop, trained: Trained, *, is_best: bool) -> None:
        if is_best:
            self.best, self.best_iter = float(current), loop.current_iter
        if self.restore_best_weights:
            self.best_weights = copy_tree(trained.state_dict())

    def _stop(self, loop: Loop, trained: Trained) -> None:
        self.stopped_iter = loop.current_iter
        loop.should_stop = True
        log.info(
            "stopped early in iteration %d: %s was best (%g) in iteration %d",
            loop.current_iter + 1,
            self.monitor,
            self.best,
            self.best_iter + 1,
        )
        if self.best_weights is not None:
            trained.load_state_dict(copy_tree(self.best_weights))

    @property
    def has_restored(self) -> bool:
        """Whether it stopped the run and restored the best weights."""
        return self.stopped_iter > 0 and self.best_weights is not None

    def state_dict(self) -> State:
        return {
            "wait": self.wait,
            "best": self.best,
            "best_iter": self.best_iter,
            "stopped_iter": self.stopped_iter,
            "best_weights": self.best_weights,
        }

    def load_state_dict(self, state_dict: State, /) -> None:
        self.wait = state_dict["wait"]
        self.best = state_dict["best"]
        self.best_iter = state_dict["best_iter"]
        self.stopped_iter = state_dict["stopped_iter"]
        self.best_weights = copy_tree(state_dict["best_weights"])
