"""The agent that writes SQL: its tables, what it may run, and what a query is worth."""

import re
import shutil
from pathlib import Path

import pytest
from sql_agent import QUESTIONS, Row, make_tasks, messages, reward, run_query

from .programs import run_program, the_run

PEOPLE: list[Row] = [["Anna", 30, "Rome"], ["Ben", 41, "Oslo"], ["Carla", 25, "Rome"]]


def test_tasks_are_made_from_the_seed_and_their_own_query_is_right() -> None:
    tasks = make_tasks(200, seed=1)
    assert tasks == make_tasks(200, seed=1)
    assert tasks != make_tasks(200, seed=2)
    assert all(reward(task, task["query"]) == 1.0 for task in tasks)
    assert all(any(line.partition("{")[0] in task["question"] for line in QUESTIONS) for task in tasks)


def test_the_prompt_shows_no_right_query() -> None:
    for task in make_tasks(50, seed=1):
        assert task["query"] not in [each["content"] for each in messages(task["question"])]


@pytest.mark.parametrize(
    ("query", "worth"),
    [
        ("SELECT name FROM people WHERE city = 'Rome'", 1.0),
        ("select name from people where city like 'rome' order by age;", 1.0),
        ("SELECT city FROM people", 0.1),
        ("SELECT name FROM nobody", 0.0),
        ("People in Rome are Anna and Carla.", 0.0),
        ("", 0.0),
        ("-- Anna and Carla", 0.0),
    ],
)
def test_a_query_is_worth_what_it_finds(query: str, worth: float) -> None:
    right = "SELECT name FROM people WHERE city = 'Rome'"
    assert reward({"people": PEOPLE, "question": "Who lives in Rome?", "query": right}, query) == worth


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE people",
        "DELETE FROM people",
        "ATTACH DATABASE '{folder}/other.db' AS other",
        "VACUUM INTO '{folder}/other.db'",
        "PRAGMA writable_schema = 1",
        "SELECT 1; DROP TABLE people",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n",
        "SELECT 'a\0b'",
    ],
)
def test_a_query_can_only_read_and_ends(tmp_path: Path, query: str) -> None:
    assert run_query(PEOPLE, query.format(folder=tmp_path) if "{" in query else query) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sql_agent(tmp_path: Path) -> None:
    few = ("--steps", "1", "--tasks-per-step", "2", "--group-size", "4", "--questions", "4")
    last = run_program("sql_agent", tmp_path, *few, timeout_seconds=570).stdout.splitlines()[-1]
    assert re.fullmatch(r"mean reward on 4 held-out questions: before [01]\.\d\d after [01]\.\d\d", last)
    assert (the_run(tmp_path) / "checkpoints" / "step_1" / "model" / "config.json").exists()
    shutil.rmtree(tmp_path)
