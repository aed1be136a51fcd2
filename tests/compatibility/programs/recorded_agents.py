"""Agents of the recorded runs. Each notes the rollouts it begins and ends, and may kill its program on the way.

`COMPATIBILITY_NOTES` names the file of notes, `COMPATIBILITY_KILL_AFTER` the number of ended rollouts after which all
processes of the program get SIGKILL.
"""

import asyncio
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import httpx

from sharpen import LLM, PromptTemplate, ProxyLLM, emit_message, emit_reward, operation, rollout

NOTES, KILL_AFTER = "COMPATIBILITY_NOTES", "COMPATIBILITY_KILL_AFTER"
TASKS = [f"say a token, number {number}" for number in range(4)]


def note(what: str, rollout_id: str) -> None:
    """Add one line to the notes; the last one that is wanted ends the program."""
    if NOTES not in os.environ:
        return
    with open(os.environ[NOTES], "a") as file:
        file.write(f"{what} {rollout_id}\n")
    ended = [line for line in Path(os.environ[NOTES]).read_text().splitlines() if line.startswith("ended")]
    if len(ended) >= int(os.environ.get(KILL_AFTER, "0")) > 0:
        os.killpg(0, signal.SIGKILL)


async def ask(llm: LLM, messages: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    """One call of a model, as any client makes it."""
    body = {"model": llm.model, "messages": messages, **more}
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        response = await client.post(f"{llm.endpoint}/chat/completions", json=body)
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


def answer_to(llm: LLM, question: str) -> str:
    """What a model says to a question."""
    answer = asyncio.run(ask(llm, [{"role": "user", "content": question}]))
    return str(answer["choices"][0]["message"]["content"])


@rollout
async def pick_even(task: str, resources: Any, rollout: Any) -> float:
    """A bandit of tokens: an even id is right."""
    note("began", rollout.rollout_id)
    shared = resources["main_llm"]
    assert isinstance(shared, ProxyLLM)
    messages = [{"role": "user", "content": task}]
    answer = await ask(shared.with_attempted_rollout(rollout), messages, max_tokens=1, return_token_ids=True)
    note("ended", rollout.rollout_id)
    return float(answer["choices"][0]["token_ids"][0] % 2 == 0)


@rollout
async def converse(task: dict[str, Any], llm: LLM) -> float:
    """Two turns with a model, a message, and a reward of two dimensions. One task cannot be done."""
    if task["number"] == 3:
        raise ValueError("3 is not a number here")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task["question"]}]
    for _ in range(2):
        answer = await ask(llm, messages)
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "Are you sure?"}]
    emit_message(f"asked twice: {task['question']}")
    emit_reward({"right": float(task["number"] % 2), "brief": 0.5}, primary_key="right")
    return float(task["number"] % 2)


@rollout
def imitate(task: dict[str, Any], prompt_template: PromptTemplate, rollout: Any) -> float:
    """A model that knows the form of an answer by luck, or from what it is shown. Its luck follows from the rollout."""
    note("began", rollout.rollout_id)
    prompt = prompt_template.format(question=task["question"])
    luck, shown = random.Random(rollout.rollout_id.split("-", 2)[2]), prompt.count("Answer: <")
    is_right = luck.random() < (0.1, 0.4, 0.6, 0.7, 0.7)[min(shown, 4)]
    answer = f"<{2 * task['number']}>" if is_right else f"It is {2 * task['number']}."
    with operation(name="call") as call:
        call.set_attributes(_as_call(prompt, answer))
    note("ended", rollout.rollout_id)
    return float(is_right)


def _as_call(prompt: str, answer: str) -> dict[str, str]:
    asked = [{"role": "user", "parts": [{"type": "text", "content": prompt}]}]
    said = [{"role": "assistant", "parts": [{"type": "text", "content": answer}]}]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(said),
    }


def doubling_tasks(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"question": f"What is 2 x {number}?", "number": number} for number in range(first, first + count)]


def training_tasks() -> list[dict[str, Any]]:
    return doubling_tasks(16, first=100)


def validation_tasks() -> list[dict[str, Any]]:
    return doubling_tasks(8)
