"""A world with a model that imitates: shown how, it answers rightly more often. Its luck follows from the rollout."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharpen import FewShot, InMemoryLightningStore, PromptTemplate, Span, Trainer, operation, rollout
from sharpen.types import AttemptedRollout
from tests.algorithm.prompts.world import World

SEED = PromptTemplate("Double the number.\n\nQuestion: {question}\nAnswer:")
Model = Callable[[str, random.Random], str]


def tasks(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    return [{"question": f"What is 2 x {number}?", "number": number} for number in range(first, first + count)]


TRAIN, VAL = tasks(40, first=100), tasks(20)


def question_of(prompt: str) -> int:
    """The number that the prompt ends with a question about."""
    return int(prompt.rpartition("What is 2 x ")[2].split("?")[0])


def count_shown(prompt: str) -> int:
    return prompt.count("Answer: <")


def imitator(prompt: str, luck: random.Random) -> str:
    """Knows the form of an answer by luck, or from what it is shown: the more of it, the more often."""
    number, shown = question_of(prompt), count_shown(prompt)
    is_right = luck.random() < (0.04, 0.5, 0.8, 0.9, 1.0)[min(shown, 4)]
    return f"<{2 * number}>" if is_right else f"It is {2 * number}."


def is_right(answer: str, task: dict[str, Any]) -> float:
    return float(answer == f"<{2 * task['number']}>")


def recorded(prompt: str, answer: str, role: str = "user") -> dict[str, str]:
    """What a recorder of calls writes down."""
    told = [(role, prompt)] if role == "user" else [(role, prompt), ("user", "the task")]
    asked = [{"role": each, "parts": [{"type": "text", "content": text}]} for each, text in told]
    said = [{"role": "assistant", "parts": [{"type": "text", "content": answer}]}]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(said),
    }


def luck_of(rollout_id: str) -> random.Random:
    """The same in every run, whatever its key."""
    return random.Random(rollout_id.split("-", 2)[2])


class ModelWorld(World):
    """Workers whose rollouts are one call of a model, and recorded as such."""

    def __init__(self, model: Model = imitator, reward: Callable[[str, Any], float] = is_right, **options: Any) -> None:
        super().__init__(lambda prompt, task: 0.0, **options)
        self.model, self.reward = model, reward

    async def _end(self, claimed: AttemptedRollout, prompt: str) -> None:
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        text = self.filled(prompt, claimed.input)
        answer = self.model(text, luck_of(claimed.rollout_id))
        span = Span.from_attributes(
            attributes=recorded(text, answer), rollout_id=ids[0], attempt_id=ids[1], name="call"
        )
        await self.store.complete_attempt(*ids, spans=[span], reward=self.reward(answer, claimed.input))

    def filled(self, prompt: str, task: Any) -> str:
        return PromptTemplate(prompt).format(question=task["question"])


@rollout
def agent(task: dict[str, Any], prompt_template: PromptTemplate, rollout: Any) -> float:
    prompt = prompt_template.format(question=task["question"])
    with operation(name="call") as call:
        answer = imitator(prompt, luck_of(rollout.rollout_id))
        call.set_attributes(recorded(prompt, answer))
    return is_right(answer, task)


async def search(few_shot: FewShot, world: World | None = None, **options: Any) -> World:
    """Run it where rollouts cost next to nothing."""
    world = world or ModelWorld()
    await world.search(few_shot, **{"train": TRAIN, "val": VAL, "resources": {"prompt": SEED}, **options})
    return world


def fit(few_shot: FewShot, folder: Path | None, the_agent: Any = agent, **options: Any) -> Trainer:
    """Run it under the real trainer, with real runners."""
    trainer = Trainer(
        algorithm=few_shot,
        store=InMemoryLightningStore(thread_safe=True),
        strategy="shm",
        initial_resources={"prompt": SEED},
        run_dir=folder,
    )
    trainer.fit(the_agent, TRAIN, VAL, **options)
    return trainer


def shape(few_shot: FewShot) -> list[tuple[Any, ...]]:
    """What a search came to, without the name of the run in the ids of rollouts."""
    key = f"ro-{few_shot.key}-"
    return [
        (
            each.version,
            each.parents,
            each.template.template,
            (each.critique or "").replace(key, ""),
            each.score,
            each.cost,
        )
        for each in few_shot.candidates
    ]
