"""`train` and `backtest`: a trainer and its vessel in one call."""

from collections.abc import Callable, Sequence
from typing import Any

from ..finite_env import FiniteEnvType
from ..interpreter import ActionInterpreter, StateInterpreter
from ..policy import Actor, Policy
from ..reward import Reward
from ..seed import InitialStateType
from .trainer import Trainer
from .vessel import TrainingVessel


def train(
    simulator_fn: Callable[..., Any],
    state_interpreter: StateInterpreter[Any, Any] | None,
    action_interpreter: ActionInterpreter[Any, Any, Any] | None,
    initial_states: Sequence[InitialStateType],
    policy: Policy,
    reward: Reward[Any] | None,
    vessel_kwargs: dict[str, Any],
    trainer_kwargs: dict[str, Any],
) -> dict[str, float]:
    """Train a policy and return the metrics of the last iteration."""
    vessel: TrainingVessel[Any, Any, Any, Any, Any] = TrainingVessel(
        simulator_fn=simulator_fn,
        state_interpreter=state_interpreter,
        action_interpreter=action_interpreter,
        policy=policy,
        reward=reward,
        train_initial_states=initial_states,
        **vessel_kwargs,
    )
    trainer = Trainer(**trainer_kwargs)
    trainer.fit(vessel)
    return trainer.metrics


def backtest(
    simulator_fn: Callable[..., Any],
    state_interpreter: StateInterpreter[Any, Any] | None,
    action_interpreter: ActionInterpreter[Any, Any, Any] | None,
    initial_states: Sequence[InitialStateType],
    policy: Actor,
    logger: Any,
    reward: Reward[Any] | None = None,
    finite_env_type: FiniteEnvType = "subproc",
    concurrency: int = 2,
    *,
    seed: int | None = None,
) -> dict[str, float]:
    """Play every initial state once with a policy and return the averages; with a `seed` they are repeatable."""
    vessel: TrainingVessel[Any, Any, Any, Any, Any] = TrainingVessel(
        simulator_fn=simulator_fn,
        state_interpreter=state_interpreter,
        action_interpreter=action_interpreter,
        policy=policy,  # type: ignore[arg-type]
        reward=reward,
        test_initial_states=initial_states,
    )
    trainer = Trainer(finite_env_type=finite_env_type, concurrency=concurrency, loggers=logger, seed=seed)
    trainer.test(vessel)
    return trainer.metrics
