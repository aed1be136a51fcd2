"""Trains a tiny model with the default strategy: `python train.py MODEL FOLDER OPTIONS`.

OPTIONS is JSON: `grpo`, `trainer` and `fit` are keyword arguments of those, `resume` the folder of a run. The last line
of the output says how the run ended.
"""

import json
import sys
from pathlib import Path

from sharpen import GRPO, Trainer
from tests.algorithm.verl.programs import agents

TASKS = [f"say a token, number {number}" for number in range(4)]


def main() -> None:
    model, folder, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    settings = {
        "group_size": 4,
        "batch_size": 4,
        "learning_rate": 1e-2,
        "steps": 6,
        "max_response_length": 8,
        "seed": 1,
    }
    algorithm = GRPO(model, **(settings | options.get("grpo", {})))
    agent = getattr(agents, options.get("agent", "even"))
    trainer = Trainer(algorithm=algorithm, run_dir=folder, n_runners=2, **options.get("trainer", {}))
    try:
        trainer.fit(agent, TASKS, resume=folder if folder.exists() else None)
    finally:
        print(json.dumps({"status": trainer.result and trainer.result.status}))


if __name__ == "__main__":
    main()
