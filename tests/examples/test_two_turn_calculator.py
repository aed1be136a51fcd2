"""The agent of two turns: what the calculator understands, and what each turn is worth."""

import asyncio
import re
import shutil
from pathlib import Path

import calculator_agent
import pytest
from two_turn_calculator import calculate, opening, two_turn_agent

from sharpen import InMemoryLightningStore, LLMProxy, Trainer
from sharpen.emitter import get_reward_value
from sharpen.types import Rollout, Span

from .programs import run_program, the_run
from .scripted_model import scripted_model


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("CALC(73*81)", "5913"),
        ("CALC(12-47)", "-35"),
        ("CALC(12+47)", "59"),
        ("CALC(9**9)", "not understood"),
        ("CALC(12+47) ", "not understood"),
        ("CALC(__import__('os'))", "not understood"),
        ("59", "not understood"),
    ],
)
def test_the_calculator_computes_two_numbers_and_nothing_else(said: str, result: str) -> None:
    assert calculate(said) == result


def test_the_example_shows_both_turns() -> None:
    talk = opening("What is 73 times 81?")
    assert [each["content"] for each in talk if each["role"] == "assistant"] == ["CALC(86-31)", "55"]
    assert talk[-1]["content"].endswith("Question: What is 73 times 81?")


def say(talk: list[dict[str, str]]) -> str:
    """A model that is right about plus, forgets the result of minus, and never calls for times."""
    question = [each["content"] for each in talk if "Question:" in each["content"]][-1]
    a, word, b = re.findall(r"What is (\d+) (\w+) (\d+)\?", question)[-1]
    if "The calculator says" in talk[-1]["content"]:
        return re.findall(r"says: (\S+)", talk[-1]["content"])[-1] if word == "plus" else "unknown"
    return {"plus": f"CALC({a}+{b})", "minus": f"CALC({a}-{b})"}.get(word, "I do not know.")


def test_every_turn_has_a_reward_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = [calculator_agent.plain_task(40, word, 12) for word in ("plus", "minus", "times")]
    store = InMemoryLightningStore()
    with scripted_model(say) as url:
        gateway = LLMProxy(model_list=[{"name": "tiny", "base_url": url}])
        Trainer(store=store, llm_proxy=gateway, n_runners=1).dev(two_turn_agent, tasks)
    assert asyncio.run(rewards_of(store)) == {"plus": [1.0, 1.0], "minus": [1.0, 0.0], "times": [0.0]}


async def rewards_of(store: InMemoryLightningStore) -> dict[str, list[float]]:
    rollouts: list[Rollout] = list(await store.query_rollouts(status_in=["succeeded"]))
    found = {}
    for each in rollouts:
        spans: list[Span] = list(await store.query_spans(each.rollout_id))
        values = [get_reward_value(span) for span in spans]
        found[each.input["question"].split()[3]] = [value for value in values if value is not None]
        assert each.reward == found[each.input["question"].split()[3]][-1]
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_turn_calculator(tmp_path: Path) -> None:
    settings = ("--steps", "8", "--questions", "30")
    last = run_program("two_turn_calculator", tmp_path, *settings, timeout_seconds=1150).stdout.splitlines()[-1]
    found = re.fullmatch(r"mean reward on 30 held-out questions: before ([01]\.\d\d) after ([01]\.\d\d)", last)
    assert found is not None, last
    assert float(found[1]) < 0.3
    assert float(found[2]) > 0.6
    assert (the_run(tmp_path) / "checkpoints" / "step_8" / "model" / "config.json").exists()
    shutil.rmtree(tmp_path)  # models take 0.5 GB each
