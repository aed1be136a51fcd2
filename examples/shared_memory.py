"""Everything in one process: two runners as threads, and tasks that need not be JSON.

    python examples/shared_memory.py

With one runner, or with `SharedMemoryExecutionStrategy(main_thread="runner")`, agents run on the main thread, where
`breakpoint()` works.
"""

from dataclasses import dataclass

from sharpen import SharedMemoryExecutionStrategy, Trainer


@dataclass(frozen=True)
class Sum:
    """A task that JSON does not know."""

    a: int
    b: int


def agent(task: Sum) -> float:
    """Adds."""
    return float(task.a + task.b)


if __name__ == "__main__":
    trainer = Trainer(
        strategy=SharedMemoryExecutionStrategy,
        n_runners=2,
        store="memory",
    )
    result = trainer.dev(agent, [Sum(1, 2), Sum(3, 4)])
    print(f"mean reward {result.metrics['run/reward_mean']}")
