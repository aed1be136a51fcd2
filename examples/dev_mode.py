"""Try an agent out: dev mode runs a small data set through it and shows what happened.

    python examples/dev_mode.py

No algorithm is needed: `Baseline` enqueues every task, logs the spans of each rollout and ends with a table of rewards.
The records (a durable store, the log, the configuration, metrics) lie in a folder below `runs/`.
"""

from typing import Any

from sharpen import LitAgent, NamedResources, Rollout, Trainer, emit_message

small_dataset = [{"question": f"{a} * {b}", "answer": a * b} for a in range(2, 5) for b in range(2, 5)]


class MyAgent(LitAgent[dict[str, Any]]):
    """Multiplies, and gets the sevens of its life wrong."""

    def rollout(self, task: dict[str, Any], resources: NamedResources, rollout: Rollout) -> float:
        a, b = map(int, task["question"].split("*"))
        said = a * b if a + b != 7 else a + b
        emit_message(f"{task['question']} = {said}")
        return float(said == task["answer"])


if __name__ == "__main__":
    trainer = Trainer(dev=True)
    result = trainer.dev(MyAgent(), small_dataset)
    print(f"{result.metrics['rollouts']} rollouts, mean reward {result.metrics['run/reward_mean']:.2f}")
