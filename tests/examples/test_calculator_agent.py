"""The agent of the demo: its tasks, what it asks, and what an answer is worth."""

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import calculator_agent
import pytest
from calculator_agent import messages, plain_tasks, story_tasks

from sharpen import LLM

from .programs import run_program
from .scripted_model import scripted_model


@pytest.fixture(autouse=True)
def new_client() -> None:
    """A client belongs to the event loop that it was first used in."""
    calculator_agent.open_client.cache_clear()


def test_plain_questions_differ_and_their_answers_are_their_numbers() -> None:
    tasks = plain_tasks(500, seed=1)
    assert tasks == plain_tasks(500, seed=1)
    assert tasks != plain_tasks(500, seed=2)
    assert len({task["question"] for task in tasks}) == 500
    for task in tasks:
        a, word, b = re.fullmatch(r"What is (\d\d) (plus|minus|times) (\d\d)\?", task["question"]).groups()  # type: ignore[union-attr]
        assert task["answer"] == f"CALC({a}{'+' if word == 'plus' else '-' if word == 'minus' else '*'}{b})"


def test_the_example_of_the_prompt_is_never_asked() -> None:
    shown = messages("")[1]["content"].rpartition("Question: ")[2]
    every = plain_tasks(90 * 3 * 90 - 1, seed=1)
    assert shown == "What is 86 minus 31?"
    assert shown not in {task["question"] for task in every}


def test_word_problems_are_about_the_numbers_of_their_answers() -> None:
    tasks = story_tasks(90, seed=1)
    assert tasks == story_tasks(90, seed=1)
    assert len({task["question"] for task in tasks}) == 90
    signs = [re.sub(r"[^-+*]", "", task["answer"]) for task in tasks]
    assert {sign: signs.count(sign) for sign in "+-*"} == {"+": 30, "-": 30, "*": 30}
    for task in tasks:
        a, b = re.findall(r"\d+", task["question"])
        assert re.fullmatch(rf"CALC\({a}[-+*]{b}\)", task["answer"])
        assert "-" not in task["answer"] or int(a) > int(b)


def test_the_model_reads_a_rule_one_example_and_the_question() -> None:
    system, user, assistant, question = messages("What is 73 times 81?")
    assert system == {"role": "system", "content": "Answer with one word or number only."}
    assert assistant == {"role": "assistant", "content": "CALC(86-31)"}
    tool = "You have a calculator. To use it, write CALC(expression), for example CALC(3*5). Do not compute yourself."
    assert user == {"role": "user", "content": f"{tool}\nQuestion: What is 86 minus 31?"}
    assert question == {"role": "user", "content": f"{tool}\nQuestion: What is 73 times 81?"}


def test_only_exactly_the_right_call_is_worth_something() -> None:
    answers = ["CALC(73*81)", "CALC(81*73)", "CALC(73*81).", "calc(73*81)", "5913", ""]
    left, seen = list(answers), list[Any]()

    def say(talk: list[dict[str, str]]) -> str:
        seen.append(talk)
        return left.pop(0)

    async def rewards(llm: LLM) -> list[Any]:
        task = calculator_agent.plain_task(73, "times", 81)
        return [await calculator_agent.calculator_agent(task, llm) for _ in answers]

    with scripted_model(say) as url:
        assert asyncio.run(rewards(LLM(url, "tiny"))) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert seen == [messages("What is 73 times 81?")] * len(answers)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_calculator_agent(tmp_path: Path) -> None:
    lines = run_program("calculator_agent", tmp_path, timeout_seconds=570).stdout.splitlines()
    asked = [task["question"] for task in (*plain_tasks(5, seed=3), *story_tasks(3, seed=3))]
    assert [question in line for question, line in zip(asked, lines, strict=True)] == [True] * 8
    assert {line[:5] for line in lines} <= {"right", "wrong"}
    shutil.rmtree(tmp_path)  # the converted model alone takes 0.5 GB
