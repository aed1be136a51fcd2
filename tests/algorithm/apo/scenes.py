"""A world in which prompts have known qualities: an agent whose reward follows from the words of its prompt, and a
critic and an editor that know better words, behind a real HTTP server."""

import re
from pathlib import Path
from typing import Any

from sharpen import APO, PromptTemplate, Trainer, emit_message, rollout
from sharpen.store import InMemoryLightningStore
from tests.algorithm.prompts.scripted_openai import Reply, ScriptedOpenAI, text_of
from tests.algorithm.prompts.world import World

WORDS = ("briefly", "exactly", "politely", "twice")  # the more of them, the better the prompt
SEED = PromptTemplate("Answer {question}.")
CRITIC, EDITOR = "critic", "editor"


def quality(prompt: str, number: int) -> float:
    """1 where the prompt is good enough for the task; each word makes it good enough for two tenths more of them."""
    return float(number % 10 < 2 * sum(word in prompt for word in WORDS))


def play(prompt: str, task: dict[str, int]) -> float:
    return quality(prompt, task["number"])


@rollout
def agent(task: dict[str, int], prompt_template: PromptTemplate) -> float:
    prompt = prompt_template.format(question=str(task["number"]))
    emit_message(prompt)
    return quality(prompt, task["number"])


def tasks(count: int, *, first: int = 0) -> list[dict[str, int]]:
    return [{"number": number} for number in range(first, first + count)]


TRAIN, VAL = tasks(12, first=100), tasks(20)


def template_of(text: str) -> str:
    """The template that critic or editor was shown."""
    found = re.search(r"<template>\n(.*?)\n</template>", text, re.DOTALL)
    assert found is not None, text
    return found[1]


def good_words(request: dict[str, Any]) -> str | Reply:
    """The critic names a word that is missing, which word follows from the seed of the request; the editor adds it."""
    text = text_of(request)
    template = template_of(text)
    if request["model"] == CRITIC:
        missing = [word for word in WORDS if word not in template] or ["nothing"]
        return f"It lacks the word: {missing[request['seed'] % len(missing)]}"
    return edited(f"{template} {wanted_word(text)}")


def wanted_word(text: str) -> str:
    """What the critic asked for, as the editor is shown it."""
    found = re.search(r"It lacks the word: (\w+)", text)
    assert found is not None, text
    return found[1]


def edited(template: str) -> str:
    """A new template as an editor gives it."""
    return f"<new_template>\n{template}\n</new_template>"


def make(server: ScriptedOpenAI, kind: type[APO] = APO, **options: Any) -> APO:
    given = {"beam_width": 2, "branch_factor": 2, "beam_rounds": 2, "gradient_batch_size": 3, "seed": 7}
    client = server.client(max_retries=0, timeout=30.0)
    return kind(client, gradient_model=CRITIC, apply_edit_model=EDITOR, **{**given, **options})


async def search(apo: APO, world: World | None = None, **options: Any) -> World:
    """Run it where rollouts cost next to nothing."""
    world = world or World(play)
    given = {"train": TRAIN, "val": VAL, "resources": {"prompt": SEED}}
    await world.search(apo, **{**given, **options})
    return world


def fit(apo: APO, folder: Path | None, *, the_agent: Any = agent, **options: Any) -> Trainer:
    """Run it under the real trainer, with real runners."""
    train, val = options.pop("train", TRAIN), options.pop("val", VAL)
    resume = options.pop("resume", None)
    trainer = Trainer(
        algorithm=apo,
        store=options.pop("store", None) or InMemoryLightningStore(thread_safe=True),
        strategy=options.pop("strategy", "shm"),
        initial_resources=options.pop("initial_resources", {"prompt": SEED}),
        run_dir=folder,
        **options,
    )
    trainer.fit(the_agent, train, val, **({} if resume is None else {"resume": resume}))
    return trainer


def shape(apo: APO) -> list[tuple[Any, ...]]:
    """What a search came to, without what it cost."""
    return [
        (each.version, each.parent, each.template.template, each.critique, each.score, each.status, each.reason)
        for each in apo.candidates
    ]
