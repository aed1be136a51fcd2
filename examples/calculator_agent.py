"""An agent that shall hand arithmetic to a calculator: its tasks, its one call of a model, and its reward.

    python examples/calculator_agent.py                       # asks SmolLM2-135M-Instruct, as it comes
    python examples/calculator_agent.py runs/<run>/checkpoints/step_12/model    # the same after `make demo`

The agent is plain `openai` code; `demo.py` trains the model behind it. Asked "What is 73 times 81?" the model shall
answer exactly CALC(73*81). Run by itself, this serves a model and asks it a few questions. Needs
`pip install 'sharpen[llm,demo]' openai`.
"""

import argparse
import asyncio
import random
from functools import cache
from typing import Any, TypedDict

from openai import AsyncOpenAI

from sharpen import LLM, rollout

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
TOOL = "You have a calculator. To use it, write CALC(expression), for example CALC(3*5). Do not compute yourself."
ANSWER_TOKENS = 16
EXAMPLE = (86, "minus", 31)
STORIES = {
    "plus": (
        "Anna has {a} apples and buys {b} more. How many apples does she have now?",
        "There are {a} boys and {b} girls in a school. How many children are there?",
        "A train has {a} passengers and {b} more get on. How many passengers are there now?",
    ),
    "minus": (
        "A shop has {a} lamps and sells {b} of them. How many lamps are left?",
        "Ben had {a} coins and lost {b} of them. How many coins does he have now?",
        "A book has {a} pages and Eva has read {b} of them. How many pages are left to read?",
    ),
    "times": (
        "There are {a} boxes with {b} pens in each box. How many pens are there?",
        "A hall has {a} rows of {b} seats. How many seats are there?",
        "Tom works {a} days and earns {b} dollars each day. How many dollars does he earn?",
    ),
}


class Task(TypedDict):
    """`kind` is "plain" or "story"; `answer` is what exactly the model shall say."""

    kind: str
    question: str
    answer: str


# -- tasks -------------------------------------------------------------------------------------------


def plain_tasks(count: int, *, seed: int) -> list[Task]:
    """Different questions about two numbers of two digits."""
    numbers = range(10, 100)
    every = [each for each in ((a, word, b) for a in numbers for word in SIGNS for b in numbers) if each != EXAMPLE]
    return [plain_task(a, word, b) for a, word, b in random.Random(seed).sample(every, count)]


def plain_task(a: int, word: str, b: int) -> Task:
    return {"kind": "plain", "question": f"What is {a} {word} {b}?", "answer": call(a, word, b)}


def story_tasks(count: int, *, seed: int) -> list[Task]:
    """Different word problems, as many with each sign; nobody has more taken away than there is."""
    chance, found = random.Random(seed), dict[str, Task]()
    while len(found) < count:
        word = tuple(SIGNS)[len(found) % len(SIGNS)]
        low, high = sorted(chance.sample(range(10, 100), 2))
        a, b = (high, low) if word == "minus" or chance.random() < 0.5 else (low, high)
        question = chance.choice(STORIES[word]).format(a=a, b=b)
        found[question] = {"kind": "story", "question": question, "answer": call(a, word, b)}
    return list(found.values())


def call(a: int, word: str, b: int) -> str:
    return f"CALC({a}{SIGNS[word]}{b})"


# -- the agent ---------------------------------------------------------------------------------------


def messages(question: str) -> list[Any]:
    """What the model reads: a rule, one example, and the question."""
    shown = plain_task(*EXAMPLE)
    return [
        {"role": "system", "content": "Answer with one word or number only."},
        {"role": "user", "content": asked(shown["question"])},
        {"role": "assistant", "content": shown["answer"]},
        {"role": "user", "content": asked(question)},
    ]


def asked(question: str) -> str:
    return f"{TOOL}\nQuestion: {question}"


@cache
def open_client() -> AsyncOpenAI:
    """One for a process: to make one costs as much as thirty calls with it."""
    return AsyncOpenAI(base_url="http://nowhere.invalid/v1", api_key="none")


async def ask(llm: LLM, question: str) -> str:
    client = open_client().with_options(base_url=llm.get_base_url(), api_key=llm.resolve_api_key() or "none")
    said = await client.chat.completions.create(model=llm.model, messages=messages(question))
    return said.choices[0].message.content or ""


@rollout
async def calculator_agent(task: Task, llm: LLM) -> float:
    """The reward is 1 for exactly the right call, else 0."""
    return float(await ask(llm, task["question"]) == task["answer"])


# -- by itself ---------------------------------------------------------------------------------------


async def try_out(llm: LLM) -> None:
    tasks = [*plain_tasks(5, seed=3), *story_tasks(3, seed=3)]
    answers = await asyncio.gather(*(ask(llm, task["question"]) for task in tasks))
    for task, answer in zip(tasks, answers, strict=True):
        mark = "right" if answer == task["answer"] else "wrong"
        print(f"{mark}  {task['question']}  {' '.join(answer.split())}")


def main() -> None:
    from sharpen.llm import demo_model, load_model
    from sharpen.llm.engine import Engine
    from sharpen.llm.server import EngineServer

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", nargs="?", help="a folder with a model; without it the one that comes in a package")
    loaded = load_model(parser.parse_args().model or demo_model())
    engine = Engine(loaded.model, loaded.tokenizer)
    with EngineServer(engine, loaded.tokenizer, name="calculator", seed=1, max_response_tokens=ANSWER_TOKENS) as server:
        asyncio.run(try_out(LLM(server.base_url, "calculator")))


if __name__ == "__main__":
    main()
