"""Write an algorithm as a function: here it picks the best of three prompts.

    python examples/custom_algorithm.py

`@algo` gives a function, sync or async, what it asks for by name. The loop is that of every algorithm: publish
resources, enqueue rollouts, wait, look at the rewards, publish the best.
"""

from collections.abc import Sequence
from typing import Any

from sharpen import LightningStore, PromptTemplate, Trainer, algo, prompt_rollout

CANDIDATES = ["{word}", "Please say: {word}", "Answer with the word {word} and nothing else."]


@algo
async def best_prompt(*, store: LightningStore, train_dataset: Sequence[str], val_dataset: Sequence[str]) -> None:
    """Every prompt is tried on the training set; the best one is published last."""
    scores: dict[str, float] = {}
    for text in CANDIDATES:
        published = await store.add_resources({"prompt": PromptTemplate(text)})
        enqueued = [await store.enqueue_rollout(task, "train", published.resources_id) for task in train_dataset]
        finished = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in enqueued])
        scores[text] = sum(rollout.reward or 0.0 for rollout in finished) / len(finished)
        print(f"{scores[text]:.2f}  {text}")
    best = max(scores, key=lambda text: scores[text])
    await store.add_resources({"prompt": PromptTemplate(best)})


@prompt_rollout
def agent(task: str, prompt_template: PromptTemplate) -> float:
    """A toy model that obeys only clear words."""
    prompt = prompt_template.format(word=task)
    said: Any = task if "nothing else" in prompt else f"Sure! {task}"
    return 1.0 if said == task else 1 / len(said)


if __name__ == "__main__":
    trainer = Trainer(algorithm=best_prompt, n_runners=2)
    result = trainer.fit(agent, ["tea", "biscuit"], ["milk"])
    assert result.best_resources is not None
    print("best:", result.best_resources["prompt"])
