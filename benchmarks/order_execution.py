"""Order execution on generated prices: what TWAP, PPO and an oracle gain over an even split.

    python benchmarks/order_execution.py             # 3 seeds
    python benchmarks/order_execution.py --seeds 1 --days 500
    python benchmarks/order_execution.py --full-history --iters 40  # interpreter and network of Qlib's example

PPO sees how good the last price is for the order, and what is left of the order and of the day. It is trained on one
market and judged on another of the same kind, on orders that nobody trained on. Each line is JSON; advantages are in
basis points, with 95 % intervals over the test orders of all seeds.
"""

import argparse
import json
import tempfile
import time
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
    FileProcessedDataProvider,
    FullHistoryStateInterpreter,
    Market,
    MarketSettings,
    PAPenaltyReward,
    Recurrent,
    SAOEState,
    SingleAssetOrderExecutionSimple,
    TwapRelativeActionInterpreter,
    generate_market,
    oracle_advantage,
)
from sharpen.rl.order_execution.market import Kind

TICKS, TICKS_PER_STEP, LEVEL, DEVIATION = 48, 6, 100.0, 0.005
STEPS = TICKS // TICKS_PER_STEP


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
    """Keeps the price advantage of every order."""

    def __init__(self) -> None:
        super().__init__()
        self.by_day: dict[str, float] = {}

    def log_episode(self, length: int, rewards: list[float], contents: list[dict[str, Any]]) -> None:
        self.by_day[contents[-1]["datetime"][:10]] = float(contents[-1]["pa"])


def market(folder: Path, kind: Kind, *, days: int, seed: int) -> Market:
    settings = MarketSettings(kind, days, TICKS, 5, LEVEL, DEVIATION, half_life_ticks=12)
    return generate_market(folder, settings, seed=seed)


def simulator_of(where: Market) -> Any:
    return partial(SingleAssetOrderExecutionSimple, data_dir=where.folder, ticks_per_step=TICKS_PER_STEP)


def state_of(where: Market, *, is_full: bool) -> StateInterpreter[SAOEState, Any]:
    if not is_full:
        return Now()
    provider = FileProcessedDataProvider(where.folder, ["$deviation"])
    return FullHistoryStateInterpreter(STEPS, TICKS, 1, provider)


def judged(where: Market, action: Any, policy: Any, *, is_full: bool = False) -> list[float]:
    """The price advantage of each order."""
    writer, state = Advantages(), state_of(where, is_full=is_full)
    backtest(simulator_of(where), state, action, where.orders, policy, writer, finite_env_type="dummy", concurrency=64)
    return [writer.by_day[order.date.isoformat()] for order in where.orders]


def trained(where: Market, seed: int, iters: int, *, is_full: bool) -> tuple[Any, Any]:
    state = state_of(where, is_full=is_full)
    action = CategoricalActionInterpreter(4, max_step=STEPS)
    torch.manual_seed(seed)
    space: Any = state.observation_space
    network = Recurrent(space) if is_full else MLP(space, (32, 32))
    policy = PPO(network, state.observation_space, action.action_space, lr=3e-3, seed=seed)
    train(
        simulator_of(where),
        state,
        action,
        where.orders,
        policy,
        PAPenaltyReward(),
        vessel_kwargs={"episode_per_iter": 256, "update_kwargs": {"repeat": 5, "batch_size": 256}},
        trainer_kwargs={"max_iters": iters, "finite_env_type": "dummy", "concurrency": 64, "seed": seed},
    )
    return action, policy


def report(measure: str, found: list[float], **more: Any) -> tuple[float, float]:
    mean, half = float(np.mean(found)), float(1.96 * np.std(found, ddof=1) / np.sqrt(len(found)))
    line = {"measure": measure, "mean_bps": round(mean, 4), "low": round(mean - half, 4), "high": round(mean + half, 4)}
    print(json.dumps(line | {"orders": len(found), **more}), flush=True)
    return mean - half, mean + half


def run(kind: Kind, folder: Path, seeds: int, iters: int, days: int, *, is_full: bool) -> None:
    even, learned, best = list[float](), list[float](), list[float]()
    start = time.perf_counter()
    for seed in range(seeds):
        learning = market(folder / f"{kind}-train-{seed}", kind, days=1000, seed=2 * seed)
        test = market(folder / f"{kind}-test-{seed}", kind, days=days, seed=2 * seed + 1)
        twap = TwapRelativeActionInterpreter()
        even += judged(test, twap, AllOne(Now.observation_space, twap.action_space))
        learned += judged(test, *trained(learning, seed, iters, is_full=is_full), is_full=is_full)
        best += [oracle_advantage(simulator_of(test)(order)) for order in test.orders]
    worst = max(abs(each) for each in even)
    print(json.dumps({"measure": f"TWAP, {kind}", "largest_bps": worst, "goal": 2e-3, "reached": worst <= 2e-3}))
    low, high = report(f"PPO, {kind}", learned, seeds=seeds, seconds=round(time.perf_counter() - start, 1))
    report(f"oracle, {kind}", best)
    is_reached = low > 0 if kind == "mean_reverting" else low <= 0 <= high
    goal = "above 0" if kind == "mean_reverting" else "not different from 0"
    bounded = all(a <= b + 1e-6 for a, b in zip(learned, best, strict=True))
    print(json.dumps({"goal": f"PPO on {kind}: {goal}", "reached": is_reached, "oracle_bounds_every_order": bounded}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--days", type=int, default=2000, help="test orders for each seed")
    parser.add_argument("--kind", choices=["mean_reverting", "martingale"])
    parser.add_argument("--full-history", action="store_true", help="FullHistoryStateInterpreter and Recurrent")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kinds: list[Kind] = [given.kind] if given.kind else ["mean_reverting", "martingale"]
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            run(kind, Path(folder), given.seeds, given.iters, given.days, is_full=given.full_history)


if __name__ == "__main__":
    main()
