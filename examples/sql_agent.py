"""An agent that answers questions about a table with SQL, trained on what its queries find.

    python examples/sql_agent.py [--steps 15] [--seed 1]

Every task brings a small table of its own, made up from the seed. The model, SmolLM2-135M-Instruct, reads the columns
and a question and writes one query, which runs on an SQLite database in memory. Nobody shows it the right query: the
reward is 1 where the rows are those of the right query, 0.1 where the query runs at all, else 0. Needs
`pip install 'sharpen[llm,demo]' openai`.
"""

import argparse
import asyncio
import random
import sqlite3
from statistics import fmean
from typing import Any, TypedDict

from calculator_agent import open_client

from sharpen import GRPO, LLM, LightningStore, Trainer, rollout
from sharpen.llm import demo_model

Row = list[Any]  # name, age, city

NAMES = ("Anna", "Ben", "Carla", "David", "Eva", "Frank", "Greta", "Hugo", "Ida", "Jonas", "Klara", "Leo")
CITIES = ("Rome", "Oslo", "Lima", "Cairo")
QUESTIONS = {
    "How old is {name}?": "SELECT age FROM people WHERE name = '{name}'",
    "Where does {name} live?": "SELECT city FROM people WHERE name = '{name}'",
    "Who lives in {city}?": "SELECT name FROM people WHERE city = '{city}'",
    "How many people live in {city}?": "SELECT COUNT(*) FROM people WHERE city = '{city}'",
    "Who is older than {age}?": "SELECT name FROM people WHERE age > {age}",
}
SYSTEM = "You write SQL queries for SQLite."
SHOWN = {"name": "Maria", "city": "Paris", "age": 30}  # in the examples of the prompt, and in no task
QUERY_TOKENS = 32
# A query may read. It must not write, open files or change settings: a model wrote it.
ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)
MOST_STEPS, STEPS_BETWEEN = 200, 1_000


class Task(TypedDict):
    people: list[Row]
    question: str
    query: str


# -- tasks -------------------------------------------------------------------------------------------


def make_tasks(count: int, *, seed: int) -> list[Task]:
    chance = random.Random(seed)
    return [make_task(chance) for _ in range(count)]


def make_task(chance: random.Random) -> Task:
    people: list[Row] = [[name, chance.randrange(18, 80), chance.choice(CITIES)] for name in chance.sample(NAMES, 8)]
    name, age, city = chance.choice(people)
    question = chance.choice(list(QUESTIONS))
    words: dict[str, Any] = {"name": name, "age": age, "city": city}
    return {"people": people, "question": question.format(**words), "query": QUESTIONS[question].format(**words)}


# -- the database ------------------------------------------------------------------------------------


def run_query(people: list[Row], query: str) -> list[tuple[Any, ...]] | None:
    """The rows that a query finds, sorted; None where it does not run, or runs on and on."""
    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE TABLE people (name TEXT, age INTEGER, city TEXT)")
        database.executemany("INSERT INTO people VALUES (?, ?, ?)", people)
        database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
        calls = iter(range(MOST_STEPS))
        database.set_progress_handler(lambda: next(calls, None) is None, STEPS_BETWEEN)
        found = database.execute(query)
        return sorted(found.fetchmany(100), key=repr) if found.description else None
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return None
    finally:
        database.close()


def reward(task: Task, query: str) -> float:
    found = run_query(task["people"], query)
    if found is None:
        return 0.0
    return 1.0 if found == run_query(task["people"], task["query"]) else 0.1


# -- the agent ---------------------------------------------------------------------------------------


def messages(question: str) -> list[Any]:
    """What the model reads: its trade, a question of each kind with its query, and the question."""
    talk: list[Any] = [{"role": "system", "content": SYSTEM}]
    for shown, query in QUESTIONS.items():
        talk += [{"role": "user", "content": asked(shown.format(**SHOWN))}]
        talk += [{"role": "assistant", "content": query.format(**SHOWN)}]
    return [*talk, {"role": "user", "content": asked(question)}]


def asked(question: str) -> str:
    return f"The table is people(name, age, city). Write the query: {question}"


@rollout
async def sql_agent(task: Task, llm: LLM) -> float:
    client = open_client().with_options(base_url=llm.get_base_url(), api_key=llm.resolve_api_key() or "none")
    said = await client.chat.completions.create(model=llm.model, messages=messages(task["question"]))
    return reward(task, said.choices[0].message.content or "")


# -- training ----------------------------------------------------------------------------------------


async def held_out_reward(store: LightningStore, step: int) -> float:
    """The mean over the held-out questions that were asked after so many steps."""
    asked_then = [each for each in await store.query_rollouts(mode="val") if (each.metadata or {})["step"] == step]
    return fmean(each.reward or 0.0 for each in asked_then)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--tasks-per-step", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=6)
    parser.add_argument("--questions", type=int, default=60, help="held-out questions, asked before and after")
    parser.add_argument("--seed", type=int, default=1)
    settings = parser.parse_args()
    algorithm = GRPO(
        demo_model(),
        group_size=settings.group_size,
        batch_size=settings.tasks_per_step,
        learning_rate=1e-4,
        trainable="top:8",
        max_response_length=QUERY_TOKENS,
        validate_every=settings.steps,
        seed=settings.seed,
        precision="fp32",
        config={"actor_rollout_ref.rollout.val_kwargs": {"temperature": 1.0, "do_sample": True}},
    )
    trainer = Trainer(
        algorithm=algorithm, n_runners=2, runner={"type": "LitAgentRunner", "concurrency": 32}, name="sql"
    )
    tasks = make_tasks(settings.questions + settings.steps * settings.tasks_per_step, seed=settings.seed)
    trainer.fit(sql_agent, tasks[settings.questions :], tasks[: settings.questions])
    before, after = (asyncio.run(held_out_reward(trainer.store, step)) for step in (0, settings.steps))
    print(f"mean reward on {settings.questions} held-out questions: before {before:.2f} after {after:.2f}")


if __name__ == "__main__":
    main()
