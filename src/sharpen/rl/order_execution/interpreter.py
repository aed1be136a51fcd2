"""Interpreters of order execution: what a policy observes of the day, and what its action means."""

from typing import Any, TypedDict

import numpy as np
from gymnasium import spaces

from ...checks import check_int
from ...components import build_component
from ...errors import InvalidInputError
from ..interpreter import ActionInterpreter, StateInterpreter
from ..trees import Array
from .data import ProcessedDataProvider
from .state import SAOEState

EPS = 1e-6


class FullHistoryObs(TypedDict):
    """Everything known so far; data of ticks to come is 0."""

    data_processed: Any
    data_processed_prev: Any
    acquiring: Any
    cur_tick: Any
    cur_step: Any
    num_step: Any
    target: Any
    position: Any
    position_history: Any


class CurrentStateObs(TypedDict):
    """The progress of the order."""

    acquiring: Any
    cur_step: Any
    num_step: Any
    target: Any
    position: Any


def _int32(value: int) -> Array:
    return np.array(value, dtype=np.int32)


def _float32(value: Any) -> Array:
    return np.array(value, dtype=np.float32)


def _progress_spaces(max_step: int) -> dict[str, spaces.Space[Any]]:
    return {
        "acquiring": spaces.Discrete(2),
        "cur_step": spaces.Box(0, max_step - 1, shape=(), dtype=np.int32),
        "num_step": spaces.Box(max_step, max_step, shape=(), dtype=np.int32),
        "target": spaces.Box(-EPS, np.inf, shape=()),
        "position": spaces.Box(-EPS, np.inf, shape=()),
    }


def _progress(state: SAOEState, max_step: int) -> CurrentStateObs:
    """Return the progress of an order. The observation after the last step has the number of the last step."""
    if state.cur_step > max_step:
        raise InvalidInputError(f"the order is at step {state.cur_step}, but max_step is {max_step}")
    return {
        "acquiring": int(state.order.direction == state.order.BUY),
        "cur_step": _int32(min(state.cur_step, max_step - 1)),
        "num_step": _int32(max_step),
        "target": _float32(state.order.amount),
        "position": _float32(state.position),
    }


class FullHistoryStateInterpreter(StateInterpreter[SAOEState, FullHistoryObs]):
    """All features of today up to now and of yesterday, and the positions after every step.

    `max_step` is an upper bound of the steps, `data_ticks` the ticks of a day, `data_dim` the features of a tick.
    `processed_data_provider` provides the features: an object or a component spec.
    """

    def __init__(
        self,
        max_step: int,
        data_ticks: int,
        data_dim: int,
        processed_data_provider: ProcessedDataProvider | dict[str, Any],
    ) -> None:
        self.max_step = check_int("max_step", max_step, at_least=1)
        self.data_ticks = check_int("data_ticks", data_ticks, at_least=1)
        self.data_dim = check_int("data_dim", data_dim, at_least=1)
        self.processed_data_provider: ProcessedDataProvider = build_component(
            processed_data_provider,
            expected_type=ProcessedDataProvider,  # type: ignore[type-abstract]
            spec_name="processed_data_provider",
        )
        data = spaces.Box(-np.inf, np.inf, shape=(data_ticks, data_dim))
        self._space = spaces.Dict(
            {
                "data_processed": data,
                "data_processed_prev": data,
                "cur_tick": spaces.Box(0, data_ticks - 1, shape=(), dtype=np.int32),
                "position_history": spaces.Box(-EPS, np.inf, shape=(max_step,)),
                **_progress_spaces(max_step),
            }
        )

    @property
    def observation_space(self) -> spaces.Dict:
        return self._space

    def interpret(self, simulator_state: SAOEState) -> FullHistoryObs:
        state = simulator_state
        processed = self.processed_data_provider.get_data(
            stock_id=state.order.stock_id,
            date=state.order.date,
            feature_dim=self.data_dim,
            time_index=state.ticks_index,
        )
        tick = int(np.searchsorted(state.ticks_index, np.datetime64(state.cur_time.replace(tzinfo=None))))
        seen = np.zeros((self.data_ticks, self.data_dim), np.float32)
        seen[:tick] = processed.today[:tick]
        position_history = np.zeros(self.max_step + 1, np.float32)
        position_history[0] = state.order.amount
        position_history[1 : len(state.history_steps) + 1] = state.history_steps["position"]
        return {
            "data_processed": seen,
            "data_processed_prev": processed.yesterday,
            "cur_tick": _int32(min(tick, self.data_ticks - 1)),
            "position_history": position_history[: self.max_step],
            **_progress(state, self.max_step),
        }


class CurrentStepStateInterpreter(StateInterpreter[SAOEState, CurrentStateObs]):
    """The progress of the order, and nothing of the market."""

    def __init__(self, max_step: int) -> None:
        self.max_step = check_int("max_step", max_step, at_least=1)
        self._space = spaces.Dict(_progress_spaces(max_step))

    @property
    def observation_space(self) -> spaces.Dict:
        return self._space

    def interpret(self, simulator_state: SAOEState) -> CurrentStateObs:
        return _progress(simulator_state, self.max_step)


class CategoricalActionInterpreter(ActionInterpreter[SAOEState, int, float]):
    """Action i trades the share `values[i]` of the order; an integer n stands for 0, 1/n, …, 1.

    With `max_step`, the last step trades everything that is left.
    """

    def __init__(self, values: int | list[float], max_step: int | None = None) -> None:
        if isinstance(values, int):
            values = [share / check_int("values", values, at_least=1) for share in range(values + 1)]
        self.action_values = list(values)
        self.max_step = max_step
        self._space = spaces.Discrete(len(self.action_values))

    @property
    def action_space(self) -> spaces.Discrete:
        return self._space

    def interpret(self, simulator_state: SAOEState, action: int) -> float:
        state = simulator_state
        if self.max_step is not None and state.cur_step >= self.max_step - 1:
            return state.position
        return min(state.position, state.order.amount * self.action_values[int(action)])


class TwapRelativeActionInterpreter(ActionInterpreter[SAOEState, float, float]):
    """The action is a multiple of what an even split of the remainder would trade: 1 is TWAP.

    The split is by ticks. If all steps have the same length it is the remainder divided by the number of steps left.
    """

    def __init__(self) -> None:
        self._space = spaces.Box(0, np.inf, shape=(), dtype=np.float32)

    @property
    def action_space(self) -> spaces.Box:
        return self._space

    def interpret(self, simulator_state: SAOEState, action: float) -> float:
        state = simulator_state
        now = len(state.history_exec)
        first = int(np.searchsorted(state.ticks_index, state.ticks_for_order[0])) + now
        left = len(state.ticks_for_order) - now
        ticks = min(state.ticks_per_step - first % state.ticks_per_step, left)
        return min(state.position, state.position * ticks / left * float(action))
