"""Agents for runs that are broken. Each notes that it began, and that it ended, in a file that outlives its process."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import httpx

from sharpen import LLM, Rollout, rollout
from sharpen.types import ProxyLLM

NOTES = "SHARPEN_TEST_NOTES"
SLOW_SECONDS = 0.05


def note(what: str) -> None:
    """One line in one write, which is whole whoever is killed."""
    handle = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, f"{what}\n".encode())
    finally:
        os.close(handle)


async def say(llm: LLM, task: str) -> list[int]:
    """One token of the model."""
    body = {
        "model": llm.model,
        "messages": [{"role": "user", "content": task}],
        "return_token_ids": True,
        "max_tokens": 1,
    }
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        for pause in (0.2, 0.5, 1, 2, 4, 0):
            try:
                response = await client.post(f"{llm.endpoint}/chat/completions", json=body)
            except httpx.TransportError:
                if not pause:
                    raise
                await asyncio.sleep(pause)  # as the clients of vendors do
            else:
                response.raise_for_status()
                found: list[int] = response.json()["choices"][0]["token_ids"]
                return found
    raise AssertionError


def _llm(resources: Any, asked: Rollout) -> LLM:
    shared = resources["main_llm"]
    assert isinstance(shared, ProxyLLM)
    return shared.with_attempted_rollout(asked)


@rollout
async def even(task: str, resources: Any, rollout: Any) -> float:
    """A bandit of tokens: an even id is right."""
    note(f"began {rollout.rollout_id} {os.getpid()}")
    tokens = await say(_llm(resources, rollout), task)
    await asyncio.sleep(SLOW_SECONDS)
    note(f"ended {rollout.rollout_id} {os.getpid()}")
    return float(tokens[0] % 2 == 0)
