"""Agents for runs that are broken. Each notes that it began, and that it ended, in a file that outlives its process."""

import asyncio
import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx

from sharpen import LLM, ProxyLLM, rollout

NOTES = "SHARPEN_TEST_NOTES"
PAUSES = (0.1, 0.3, 1.0, 3.0, 9.0, 0.0)
TASKS = [f"say a token, number {number}" for number in range(4)]


def note(what: str) -> None:
    """One line in one write, which is whole whoever is killed."""
    handle = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, f"{what}\n".encode())
    finally:
        os.close(handle)


def notes() -> list[str]:
    return Path(os.environ[NOTES]).read_text().splitlines()


async def say(shared: Any, asked: Any, task: str) -> int:
    """One token of the model. Like the clients of vendors, it tries again while nobody answers."""
    assert isinstance(shared, ProxyLLM)
    llm: LLM = shared.with_attempted_rollout(asked)
    messages = [{"role": "user", "content": task}]
    body = {"model": llm.model, "messages": messages, "return_token_ids": True, "max_tokens": 1}
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        for pause in PAUSES:
            try:
                response = await client.post(f"{llm.endpoint}/chat/completions", json=body)
            except httpx.TransportError:
                if not pause:
                    raise
                await asyncio.sleep(pause)
                continue
            response.raise_for_status()
            return int(response.json()["choices"][0]["token_ids"][0])
    raise AssertionError


@rollout
async def even(task: str, resources: Any, rollout: Any) -> float:
    """A bandit of tokens: an even id is right."""
    note(f"began {rollout.rollout_id} {os.getpid()}")
    token = await say(resources["main_llm"], rollout, task)
    await asyncio.sleep(0.02)
    note(f"ended {rollout.rollout_id} {os.getpid()}")
    return float(token % 2 == 0)


@rollout
async def naughty(task: str, resources: Any, rollout: Any) -> Any:
    """Every step has its own mishaps; the other rollouts are those of `even`, with a reward that differs."""
    match = re.search(r"-s(\d+)-t(\d+)-(\d+)$", rollout.rollout_id)
    assert match
    step, number, sample = map(int, match.groups())
    if (step, sample) == (1, 0):
        return await _misbehave(number)
    if step == 2 or ((step, number) == (4, 0) and sample):
        return await _take_the_runner_along(step)
    token = await say(resources["main_llm"], rollout, task * 200 if (step, sample) == (3, 0) else task)
    note(f"ended {rollout.rollout_id} {os.getpid()}")
    return token / 1000


async def _misbehave(number: int) -> Any:
    if number == 0:
        raise RuntimeError("the agent has a bug")
    if number == 1:
        await asyncio.sleep(600)
    return math.nan if number == 2 else "a text"


async def _take_the_runner_along(step: int) -> None:
    """Lost to infrastructure, once the others of the step are done and have been told to the store."""
    others = 0 if step == 2 else 13
    while sum(f"-s{step}-" in line for line in notes()) < others:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.0 if others else 0)
    os.kill(os.getpid(), signal.SIGKILL)
