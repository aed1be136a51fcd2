"""The trainer as a `Loop`: what callbacks read and set of it is that of the run under way, or of the last one."""

from typing import Any

from ..callbacks.base import State
from .loop import LoopPlan, TrainingLoop


class LoopFace:
    """Where the algorithm runs in another process, its loop is there too, and this one stays at its beginning."""

    _loop: TrainingLoop

    def _reset_loop(self) -> None:
        self._loop = TrainingLoop(LoopPlan())

    def follow_loop(self, loop: TrainingLoop) -> None:
        self._loop = loop

    @property
    def metrics(self) -> dict[str, float]:
        """Of the newest iteration that the algorithm reported: `train/…` and `val/…`."""
        return self._loop.metrics

    @metrics.setter
    def metrics(self, metrics: dict[str, float]) -> None:
        self._loop.metrics = metrics

    @property
    def current_iter(self) -> int:
        """How many iterations are finished."""
        return self._loop.current_iter

    @current_iter.setter
    def current_iter(self, number: int) -> None:
        self._loop.current_iter = number

    @property
    def current_stage(self) -> str:
        return self._loop.current_stage

    @current_stage.setter
    def current_stage(self, stage: str) -> None:
        self._loop.current_stage = stage

    @property
    def should_stop(self) -> bool:
        """Set it, and the algorithm is told so when it reports its iteration."""
        return self._loop.should_stop

    @should_stop.setter
    def should_stop(self, should_stop: bool) -> None:
        self._loop.should_stop = should_stop

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on, the state of the algorithm included."""
        return self._loop.state_dict()

    def load_state_dict(self, state_dict: State, /) -> None:
        self._loop.load_state_dict(state_dict)
