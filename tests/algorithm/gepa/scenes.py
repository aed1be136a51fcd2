"""A world in which prompts have known qualities: an agent whose reward follows from the words of its prompts, and which
says in its trace what was missing; and a model that reads that in the feedback, behind a real HTTP server."""

import re
from pathlib import Path
from typing import Any

from sharpen import GEPA, PromptTemplate, Trainer, emit_message, rollout
from sharpen.store import InMemoryLightningStore
from sharpen.types import NamedResources
from tests.algorithm.prompts.scripted_openai import Reply, ScriptedOpenAI, text_of

WORDS = ("briefly", "exactly", "politely", "twice")
SEED = PromptTemplate("Answer {question}.")
TWO_SEEDS = {"plan": PromptTemplate("Plan for {question}."), "reply": PromptTemplate("Reply to {question}.")}
MODEL = "thinker"


@rollout
async def agent(task: dict[str, Any], resources: NamedResources) -> float:
    """1 where the prompt has the word that the task needs."""
    prompt = resources[task["part"]]
    assert isinstance(prompt, PromptTemplate)
    if task["word"] in prompt.format(question=task["number"]):
        return 1.0
    emit_message(f"{task['part']} lacks: {task['word']}")
    return 0.0


def tasks(count: int, *, first: int = 0, parts: tuple[str, ...] = ("prompt",)) -> list[dict[str, Any]]:
    """The word goes round with the number, the part of the prompts with every round of words."""
    numbers = range(first, first + count)
    return [{"number": n, "word": WORDS[n % len(WORDS)], "part": parts[n // len(WORDS) % len(parts)]} for n in numbers]


def shown_prompt(request: dict[str, Any]) -> str:
    """The prompt that the model was asked to improve."""
    return text_of(request).split("```")[1].strip()


def shown_lack(request: dict[str, Any]) -> str | None:
    """The first word that the feedback says is missing in that prompt."""
    prompt = shown_prompt(request)
    part = "prompt" if prompt.startswith("Answer") else prompt.split()[0].lower()
    found = re.findall(rf"{part} lacks: (\w+)", text_of(request))
    return found[0] if found else None


def add_what_lacks(request: dict[str, Any]) -> str | Reply:
    word = shown_lack(request) or "calmly"
    return f"It lacked {word}.\n```\n{shown_prompt(request)} {word}\n```"


def take_what_lacks(request: dict[str, Any]) -> str | Reply:
    """The same for a model that can keep one word in mind: what it gains here it loses there."""
    word, prompt = shown_lack(request) or "calmly", shown_prompt(request)
    return f"It lacked {word}.\n```\n{prompt.partition('}.')[0]}}}. {word}\n```"


def make(server: ScriptedOpenAI, **options: Any) -> GEPA:
    given: dict[str, Any] = {"reflection_model": MODEL, "max_metric_calls": 60, "seed": 1}
    return GEPA(reflection_client=server.client(max_retries=0, timeout=5.0), **(given | options))


def fit(gepa: GEPA, folder: Path, *, the_agent: Any = agent, **options: Any) -> Trainer:
    train, val = options.pop("data", (tasks(8, first=100), tasks(8)))
    resume = options.pop("resume", None)
    given: dict[str, Any] = {"strategy": "shm", "initial_resources": {"prompt": SEED}, "run_dir": folder}
    if "store" not in options:
        given["store"] = InMemoryLightningStore(thread_safe=True)
    trainer = Trainer(algorithm=gepa, **(given | options))
    trainer.fit(the_agent, train, val, resume=resume)
    return trainer
