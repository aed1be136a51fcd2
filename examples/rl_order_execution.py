"""Split an order over a day: PPO learns when to trade in a market whose prices swing around a level.

    python examples/rl_order_execution.py

It generates a market, trains on a year of orders, and compares on another year: an even split (TWAP), PPO, and an
oracle that knows the day. With matplotlib installed it draws what was learned to `order_execution.png`.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from sharpen.rl import MLP, LogWriter, StateInterpreter, backtest, train
from sharpen.rl.order_execution import (
    PPO,
    AllOne,
    CategoricalActionInterpreter,
    MarketSettings,
    PAPenaltyReward,
    SAOEState,
    SingleAssetOrderExecutionSimple,
    TwapRelativeActionInterpreter,
    generate_market,
    oracle_advantage,
)

LEVEL, DEVIATION, STEPS = 100.0, 0.005, 8


class Now(StateInterpreter[SAOEState, Any]):
    """How good the last price is for this order, in standard deviations; and what is left of the order and the day."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def interpret(self, simulator_state: SAOEState) -> Any:
        state = simulator_state
        prices = state.history_exec["market_price"]
        deviation = np.log(prices[-1] / LEVEL) / DEVIATION if len(prices) else 0.0
        good = -deviation if state.order.direction == state.order.BUY else deviation
        return np.array([good, state.position / state.order.amount, 1 - state.cur_step / STEPS], np.float32)


class Advantages(LogWriter):
    """Keeps the price advantage of each order."""

    def __init__(self) -> None:
        super().__init__()
        self.bps: list[float] = []

    def log_episode(self, length: int, rewards: list[float], contents: list[dict[str, Any]]) -> None:
        self.bps.append(contents[-1]["pa"])


def draw(found: dict[str, list[float]], policy: Any, action: CategoricalActionInterpreter) -> None:
    """The advantages of all orders, and how much of an order PPO trades at which price."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: pip install 'sharpen[plot]'")
        return
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    left.boxplot(list(found.values()), showfliers=False, showmeans=True)
    left.set_xticks(range(1, len(found) + 1), list(found))
    left.set_ylabel("price advantage (basis points)")
    price = np.linspace(-2.5, 2.5, 101, dtype=np.float32)
    for step in (1, 4, 6):
        obs = np.stack([price, np.ones_like(price), np.full_like(price, 1 - step / STEPS)], axis=1)
        chosen = policy.act(obs, rng=None, deterministic=True).action_N
        right.plot(price, np.array(action.action_values)[chosen], label=f"step {step + 1} of {STEPS}")
    right.set_xlabel("how good the price is (standard deviations)")
    right.set_ylabel("share of the order traded")
    right.legend()
    figure.tight_layout()
    figure.savefig("order_execution.png", dpi=120)
    print("drawn to order_execution.png")


def main(folder: Path) -> None:
    settings = MarketSettings("mean_reverting", 250, 48, 5, LEVEL, DEVIATION, half_life_ticks=12)
    learning, test = (generate_market(folder / name, settings, stocks=2, seed=seed) for seed, name in enumerate("ab"))
    simulator = partial(SingleAssetOrderExecutionSimple, ticks_per_step=6)
    state, action, twap = Now(), CategoricalActionInterpreter(4, max_step=STEPS), TwapRelativeActionInterpreter()
    torch.manual_seed(0)
    policy = PPO(MLP(state.observation_space, (32, 32)), state.observation_space, action.action_space, lr=3e-3, seed=0)
    train(
        partial(simulator, data_dir=learning.folder),
        state,
        action,
        learning.orders,
        policy,
        PAPenaltyReward(),
        vessel_kwargs={"episode_per_iter": 250, "update_kwargs": {"repeat": 5}},
        trainer_kwargs={"max_iters": 20, "finite_env_type": "dummy", "concurrency": 50, "seed": 0},
    )
    found: dict[str, list[float]] = {}
    contestants: dict[str, tuple[Any, Any]] = {
        "TWAP": (twap, AllOne(state.observation_space, twap.action_space)),
        "PPO": (action, policy),
    }
    for name, (interpreter, contestant) in contestants.items():
        writer = Advantages()
        place = partial(simulator, data_dir=test.folder)
        backtest(place, state, interpreter, test.orders, contestant, writer, finite_env_type="dummy", concurrency=50)
        found[name] = writer.bps
    found["oracle"] = [oracle_advantage(simulator(order, data_dir=test.folder)) for order in test.orders]
    for name, bps in found.items():
        error = np.std(bps) / np.sqrt(len(bps))
        print(f"{name:6s} {np.mean(bps):6.2f} basis points (95 % within {1.96 * error:.2f})")
    draw(found, policy, action)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
