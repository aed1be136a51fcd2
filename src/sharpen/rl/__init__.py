"""Policies in simulators: the parts, the trainer, the policies.

Names are loaded when they are first used, so torch is only loaded with the policies.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..callbacks import (
        Callback as Callback,
        Checkpoint as Checkpoint,
        EarlyStopping as EarlyStopping,
        MetricsWriter as MetricsWriter,
    )
    from ..errors import (
        EpisodeError as EpisodeError,
        GymSpaceValidationError as GymSpaceValidationError,
        QueueError as QueueError,
        RewardError as RewardError,
        SeedIteratorNotAvailable as SeedIteratorNotAvailable,
        WorkerDiedError as WorkerDiedError,
    )
    from ..loggers import LogLevel as LogLevel
    from .aux_info import AuxiliaryInfoCollector as AuxiliaryInfoCollector
    from .collector import Collector as Collector
    from .data_queue import DataQueue as DataQueue
    from .env_wrapper import (
        EnvWrapper as EnvWrapper,
        EnvWrapperStatus as EnvWrapperStatus,
        InfoDict as InfoDict,
        OldGymEnv as OldGymEnv,
        SeedsExhausted as SeedsExhausted,
    )
    from .finite_env import (
        FiniteDummyVectorEnv as FiniteDummyVectorEnv,
        FiniteEnvType as FiniteEnvType,
        FiniteVectorEnv as FiniteVectorEnv,
        vectorize_env as vectorize_env,
    )
    from .interpreter import (
        ActionInterpreter as ActionInterpreter,
        Interpreter as Interpreter,
        StateInterpreter as StateInterpreter,
    )
    from .logging import LogBuffer as LogBuffer, LogCollector as LogCollector, LogWriter as LogWriter
    from .policies import (
        DQN as DQN,
        MLP as MLP,
        PPO as PPO,
        SAC as SAC,
        ModulePolicy as ModulePolicy,
        ReplayBuffer as ReplayBuffer,
        SB3Policy as SB3Policy,
        Tianshou04Policy as Tianshou04Policy,
    )
    from .policy import Actions as Actions, Actor as Actor, EpisodeBatch as EpisodeBatch, Policy as Policy
    from .reward import Reward as Reward, RewardCombination as RewardCombination
    from .seed import InitialStateType as InitialStateType, SeedIterator as SeedIterator
    from .simulator import ActType as ActType, Simulator as Simulator, StateType as StateType
    from .spaces import (
        check_nan_observation as check_nan_observation,
        generate_nan_observation as generate_nan_observation,
    )
    from .trainer import (
        Trainer as Trainer,
        TrainingVessel as TrainingVessel,
        TrainingVesselBase as TrainingVesselBase,
        backtest as backtest,
        train as train,
    )
    from .vector_simulator import (
        FiniteVectorSimulatorEnv as FiniteVectorSimulatorEnv,
        VectorSimulator as VectorSimulator,
    )
    from .worker_env import (
        FiniteShmemVectorEnv as FiniteShmemVectorEnv,
        FiniteSubprocVectorEnv as FiniteSubprocVectorEnv,
    )
    from .writers import (
        ConsoleWriter as ConsoleWriter,
        CsvWriter as CsvWriter,
        MlflowWriter as MlflowWriter,
        PickleWriter as PickleWriter,
        TensorboardWriter as TensorboardWriter,
    )

_MODULES = {
    "..callbacks": ("Callback", "Checkpoint", "EarlyStopping", "MetricsWriter"),
    "..errors": (
        "EpisodeError",
        "GymSpaceValidationError",
        "QueueError",
        "RewardError",
        "SeedIteratorNotAvailable",
        "WorkerDiedError",
    ),
    "..loggers": ("LogLevel",),
    ".aux_info": ("AuxiliaryInfoCollector",),
    ".collector": ("Collector",),
    ".data_queue": ("DataQueue",),
    ".env_wrapper": ("EnvWrapper", "EnvWrapperStatus", "InfoDict", "OldGymEnv", "SeedsExhausted"),
    ".finite_env": ("FiniteDummyVectorEnv", "FiniteEnvType", "FiniteVectorEnv", "vectorize_env"),
    ".interpreter": ("ActionInterpreter", "Interpreter", "StateInterpreter"),
    ".logging": ("LogBuffer", "LogCollector", "LogWriter"),
    ".policies": ("DQN", "MLP", "PPO", "SAC", "ModulePolicy", "ReplayBuffer", "SB3Policy", "Tianshou04Policy"),
    ".policy": ("Actions", "Actor", "EpisodeBatch", "Policy"),
    ".reward": ("Reward", "RewardCombination"),
    ".seed": ("InitialStateType", "SeedIterator"),
    ".simulator": ("ActType", "Simulator", "StateType"),
    ".spaces": ("check_nan_observation", "generate_nan_observation"),
    ".trainer": ("Trainer", "TrainingVessel", "TrainingVesselBase", "backtest", "train"),
    ".vector_simulator": ("FiniteVectorSimulatorEnv", "VectorSimulator"),
    ".worker_env": ("FiniteShmemVectorEnv", "FiniteSubprocVectorEnv"),
    ".writers": ("ConsoleWriter", "CsvWriter", "MlflowWriter", "PickleWriter", "TensorboardWriter"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_MODULE_OF]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from ..errors import MissingExtraError

    try:
        module = import_module(_MODULE_OF[name], __name__)
    except ModuleNotFoundError as error:
        if error.name not in ("gymnasium", "numpy"):
            raise
        raise MissingExtraError.of(error.name, extra="rl", feature=f"sharpen.rl.{name}") from error
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
