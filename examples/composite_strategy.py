"""A strategy of one's own that delegates: threads for a debugger, processes for the real thing.

    python examples/composite_strategy.py
    DEBUG=1 python examples/composite_strategy.py

A strategy overrides `execute`, sync or async; `stop` lets Ctrl-C elsewhere and `Trainer.stop` reach what it started.
"""

import os

from sharpen import Trainer
from sharpen.execution import (
    AlgorithmBundle,
    ClientServerExecutionStrategy,
    ExecutionStrategy,
    RunnerBundle,
    SharedMemoryExecutionStrategy,
)
from sharpen.store import LightningStore


class ByEnvironment(ExecutionStrategy):
    """One runner on the main thread when somebody debugs, processes otherwise."""

    def __init__(self, n_runners: int = 1) -> None:
        self.n_runners = n_runners
        self.chosen: ExecutionStrategy = (
            SharedMemoryExecutionStrategy(n_runners=1, main_thread="runner")
            if os.environ.get("DEBUG")
            else ClientServerExecutionStrategy(n_runners=n_runners)
        )

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        print(f"running with {type(self.chosen).__name__}")
        self.chosen.execute(algorithm, runner, store)

    def stop(self) -> None:
        self.chosen.stop()


def agent(task: int) -> float:
    """Squares."""
    return float(task**2)


if __name__ == "__main__":
    result = Trainer(strategy=ByEnvironment, n_runners=2, dev=True).fit(agent, [1, 2, 3])
    print(f"mean reward {result.metrics['run/reward_mean']:.2f}")
