"""A prompt improves itself, without any model: a stand-in plays worker, critic and editor.

    python examples/apo_offline.py

The agent reads dates from texts. Its prompt says little, and the worker does no more than it is told; what APO finds
out is what the prompt should say. At the end: the candidates as a tree, and the best prompt against the first one. With
real models only the client and the names change (see `apo_real_api.py`). Needs `pip install 'sharpen[apo]'`.
"""

import random
from functools import cache
from typing import TypedDict

from openai import AsyncOpenAI
from stand_in_model import MONTHS, StandInModel

from sharpen import APO, LLM, NamedResources, PromptTemplate, Trainer, rollout

SEED = PromptTemplate("Which date is meant?\n\nText: {text}")


class Task(TypedDict):
    text: str
    date: str


def make_tasks(count: int, *, seed: int) -> list[Task]:
    """Dates in words and in numbers, the day first."""
    chance, tasks = random.Random(seed), list[Task]()
    for number in range(count):
        day, month, year = chance.randint(1, 12), chance.randint(1, 12), chance.randint(1990, 2030)
        text = (
            f"We meet on {day}/{month}/{year}." if number % 2 else f"Due on the {day}th of {MONTHS[month - 1]} {year}."
        )
        tasks.append({"text": text, "date": f"{year}-{month:02}-{day:02}"})
    return tasks


@cache
def open_client() -> AsyncOpenAI:
    """One for a process: to make one costs as much as thirty calls with it."""
    return AsyncOpenAI(base_url="http://nowhere.invalid/v1", api_key="none")


@rollout
async def date_reader(task: Task, prompt_template: PromptTemplate, llm: LLM) -> float:
    """The reward is 1 for exactly the date, a half where it stands among other words."""
    client = open_client().with_options(base_url=llm.get_base_url())
    asked = {"role": "user", "content": prompt_template.format(text=task["text"])}
    said = await client.chat.completions.create(model=llm.model, messages=[asked])  # type: ignore[list-item]
    answer = said.choices[0].message.content or ""
    return 1.0 if answer == task["date"] else 0.5 * (task["date"] in answer)


def main() -> None:
    with StandInModel() as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="none")
        apo = APO(client, gradient_model="critic", apply_edit_model="editor", beam_width=2, branch_factor=2, seed=1)
        resources: NamedResources = {"prompt": SEED, "worker": LLM(model.base_url, "worker")}
        trainer = Trainer(algorithm=apo, initial_resources=resources, name="apo-offline")
        result = trainer.fit(date_reader, make_tasks(24, seed=1), make_tasks(24, seed=2))
    before = apo.candidates[0].score
    assert before is not None
    print(f"\nmean reward on validation tasks: {before.mean:.2f} before, {result.metrics['val/reward_mean']:.2f} after")
    print(f"the best prompt:\n{apo.get_best_prompt().template}")


if __name__ == "__main__":
    main()
