"""`LossWatch`: says when a run goes wrong, and ends one whose loss is no number any more.

It reads each logged loss. A loss *rises* when the last few lie clearly above the lowest stretch before; it *oscillates*
when it swings up and down by a large part of itself and gets nowhere. Each is said once, with what to do. The loss of
GRPO says nothing about progress (it stays near 0), so there the reward is watched: it may not fall.
"""

import logging
import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from ...callbacks.base import Callback, State
from ..errors import TrainingError

log = logging.getLogger(__name__)

WINDOW = 6
"""Logged values that are judged together."""
_CLEARLY = 0.2
"""The part of the lowest mean by which a stretch must lie above it."""
_OF_START = 0.05
"""The part of the first mean that a rise or a swing must exceed, so that noise around a loss near 0 is none."""
_OF_NOISE = 2.5
"""How many times the mean step between two values a rise must exceed."""
_MEMORY = 50
"""The values over which that mean step is taken."""
_SWING = 0.75
"""The mean step between two values, as a part of their mean, that is a swing; less is the noise of small batches."""
_LEAST_TURNS = 9
"""Of the 10 inner values of two windows, how many are peaks or valleys; by chance alone it is 2 in 3."""


class LossWatch(Callback):
    """Warns of a loss that rises or oscillates; raises `TrainingError` when it is not finite."""

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._count = 0
        self._noise = 0.0
        self._first: float | None = None
        self._lowest: float | None = None
        self._warned: list[str] = []

    def on_iter_end(self, loop: Any, trained: Any, /) -> None:
        loss = loop.metrics.get("loss")
        if loss is None:
            return
        if not math.isfinite(loss):
            raise TrainingError(not_finite(loop, loss))
        is_reward = "reward" in loop.metrics
        self._look(loop, -loop.metrics["reward"] if is_reward else loss, is_reward=is_reward)

    def state_dict(self) -> State:
        return {
            "recent": list(self._recent),
            "count": self._count,
            "noise": self._noise,
            "first": self._first,
            "lowest": self._lowest,
            "warned": list(self._warned),
        }

    def load_state_dict(self, state_dict: State, /) -> None:
        self._recent, self._warned = list(state_dict["recent"]), list(state_dict["warned"])
        self._count, self._noise = state_dict["count"], state_dict["noise"]
        self._first, self._lowest = state_dict["first"], state_dict["lowest"]

    def _look(self, loop: Any, value: float, *, is_reward: bool) -> None:
        if self._recent:
            self._count += 1
            self._noise += (abs(value - self._recent[-1]) - self._noise) / min(self._count, _MEMORY)
        self._recent = [*self._recent, value][-2 * WINDOW :]
        if len(self._recent) < WINDOW:
            return
        newest = self._recent[-WINDOW:]
        if self._first is None:
            self._first = fmean(newest)
        if self._is_rising(newest):
            self._warn("rises", _rise(loop, self._lowest or 0.0, fmean(newest), is_reward=is_reward))
        elif not is_reward and is_oscillating(self._recent, least=_OF_START * abs(self._first)):
            self._warn("oscillates", _swings(loop, self._recent))
        self._lowest = fmean(newest) if self._lowest is None else min(self._lowest, fmean(newest))

    def _is_rising(self, newest: list[float]) -> bool:
        if self._lowest is None or self._first is None:
            return False
        # The lowest stretch was also the luckiest, and the newest may be an unlucky one: noise counts twice.
        margin = max(_CLEARLY * abs(self._lowest), _OF_START * abs(self._first), _OF_NOISE * self._noise)
        return min(newest) > self._lowest and fmean(newest) > self._lowest + margin

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.append(kind)
            log.warning(message)


def is_oscillating(values: list[float], *, least: float = 0.0) -> bool:
    """Whether two windows of values swing up and down widely, by more than `least`, and get no lower."""
    if len(values) < 2 * WINDOW:
        return False
    steps = [after - before for before, after in pairwise(values)]
    turns = sum(one * other < 0 for one, other in pairwise(steps))
    is_wide = fmean(map(abs, steps)) > max(_SWING * abs(fmean(values)), least)
    is_no_lower = fmean(values[WINDOW:]) > 0.95 * fmean(values[:WINDOW])
    return turns >= _LEAST_TURNS and is_wide and is_no_lower


# -- words -------------------------------------------------------------------------------------------


def _rise(loop: Any, lowest: float, now: float, *, is_reward: bool) -> str:
    if is_reward:
        return f"step {loop.current_iter}: the reward is falling, from {-lowest:.4g} to {-now:.4g}. {_advice(loop)}"
    return f"step {loop.current_iter}: the loss is rising, from {lowest:.4g} to {now:.4g}. {_advice(loop)}"


def _swings(loop: Any, values: list[float]) -> str:
    return (
        f"step {loop.current_iter}: the loss oscillates between {min(values):.4g} and {max(values):.4g} without "
        f"improving. {_advice(loop)}, or a larger batch (batch_size, gradient_accumulation_steps)"
    )


def not_finite(loop: Any, loss: float) -> str:
    newest = _newest_checkpoint(loop)
    saved = f"the last checkpoint is {newest}" if newest else "there is no checkpoint yet"
    return (
        f"the loss is {loss} at step {loop.current_iter}, so the weights are no longer usable; {saved}. "
        f"{_advice(loop)}, a longer warmup, a lower max_grad_norm, or precision='bf16' or 'fp32' instead of 'fp16'"
    )


def _advice(loop: Any) -> str:
    rate = getattr(getattr(loop, "settings", None), "learning_rate", None)
    return (
        "Try a lower learning rate" if rate is None else f"Try a learning_rate below {rate:g}, such as {rate / 3:.1g}"
    )


def _newest_checkpoint(loop: Any) -> Path | None:
    from .checkpoints import checkpoints

    folder = getattr(loop, "output_dir", None)
    found = [] if folder is None else checkpoints(Path(folder))
    return found[-1] if found else None
