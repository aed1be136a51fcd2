"""The roles of a run in different terminals, or on different machines.

    python examples/roles_apart.py algorithm      # the store and the algorithm: ends when all tasks are done
    python examples/roles_apart.py runner         # one or several of these, before or after: they wait for the store

The same by environment variables, without a word in the program: SHARPEN_CURRENT_ROLE, SHARPEN_SERVER_HOST and
SHARPEN_SERVER_PORT. On one machine the runners find the token of the store by themselves; elsewhere set the variable
SHARPEN_TOKEN to the same value on both sides. A runner ends with Ctrl-C, or a minute after the store has gone.
"""

import argparse

from sharpen import Trainer
from sharpen.execution import ClientServerExecutionStrategy


def agent(task: int) -> float:
    """Squares."""
    print(f"the agent works on {task}", flush=True)
    return float(task**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("role", choices=["algorithm", "runner"])
    parser.add_argument("--port", type=int, default=4747)
    arguments = parser.parse_args()
    strategy = ClientServerExecutionStrategy(role=arguments.role, server_port=arguments.port)
    trainer = Trainer(algorithm="Baseline", strategy=strategy)
    result = trainer.fit(agent, list(range(6)))
    print(f"{arguments.role}: {result.status}", result.metrics.get("run/reward_mean", ""))


if __name__ == "__main__":
    main()
