"""Give the Trainer its parts as dicts: an algorithm of one's own by its name, and a store file of one's choice.

    python examples/custom_components.py

A class of the running script is found by its name; a class elsewhere by its import path, or by a name that was given
to it with `sharpen.register`. A misspelt name or argument is refused before anything starts, with the nearest one.
"""

from typing import Any

from sharpen import Algorithm, Trainer


class MyAlgorithm(Algorithm[str]):
    """Asks for every task as often as it was told to."""

    def __init__(self, custom_param: str, repeats: int = 2) -> None:
        self.custom_param = custom_param
        self.repeats = repeats

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        ids = []
        for task in train_dataset:
            for _ in range(self.repeats):
                rollout = await store.enqueue_rollout({"word": task, "like": self.custom_param}, mode="train")
                ids.append(rollout.rollout_id)
        for rollout in await store.wait_for_rollouts(rollout_ids=ids):
            print(f"{rollout.input['word']}: {rollout.reward}")


def agent(task: dict[str, Any]) -> float:
    """How much of the wanted word is in the task's."""
    return len(set(task["word"]) & set(task["like"])) / len(set(task["like"]))


if __name__ == "__main__":
    trainer = Trainer(
        algorithm={"type": "MyAlgorithm", "custom_param": "value"},
        store={"type": "SQLiteStore", "database_url": "sqlite:///training.db"},
    )
    trainer.fit(agent, ["valley", "lever", "stone"])
