"""Order execution: split an order over a day. The example application of `sharpen.rl`.

torch is loaded when `Recurrent`, `PPO` or `DQN` is first used.
"""

from typing import TYPE_CHECKING, Any

from .data import FileProcessedDataProvider, IntradayBacktestData, IntradayProcessedData, ProcessedDataProvider
from .interpreter import (
    CategoricalActionInterpreter,
    CurrentStepStateInterpreter,
    FullHistoryObs,
    FullHistoryStateInterpreter,
    TwapRelativeActionInterpreter,
)
from .market import Market, MarketSettings, generate_market
from .order import Order, OrderDir, load_orders
from .policy import AllOne, NonLearnablePolicy
from .reward import PAPenaltyReward, PPOReward
from .simulator_simple import SingleAssetOrderExecutionSimple, oracle_advantage
from .state import SAOEMetrics, SAOEState, price_advantage

if TYPE_CHECKING:
    from ..policies.dqn import DQN as DQN
    from ..policies.ppo import QlibPPO as PPO
    from .network import Recurrent as Recurrent

__all__ = [
    "DQN",
    "PPO",
    "AllOne",
    "CategoricalActionInterpreter",
    "CurrentStepStateInterpreter",
    "FileProcessedDataProvider",
    "FullHistoryObs",
    "FullHistoryStateInterpreter",
    "IntradayBacktestData",
    "IntradayProcessedData",
    "Market",
    "MarketSettings",
    "NonLearnablePolicy",
    "Order",
    "OrderDir",
    "PAPenaltyReward",
    "PPOReward",
    "ProcessedDataProvider",
    "Recurrent",
    "SAOEMetrics",
    "SAOEState",
    "SingleAssetOrderExecutionSimple",
    "TwapRelativeActionInterpreter",
    "generate_market",
    "load_orders",
    "oracle_advantage",
    "price_advantage",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("PPO", "DQN"):
        return getattr(import_module(".policy", __name__), name)
    if name == "Recurrent":
        from ...errors import MissingExtraError

        try:
            return import_module(".network", __name__).Recurrent
        except ModuleNotFoundError as error:
            raise MissingExtraError.of("torch", extra="rl", feature="sharpen.rl.order_execution.Recurrent") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
