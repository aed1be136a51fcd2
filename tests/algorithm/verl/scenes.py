"""Small runs of VERL: a tiny model, an agent of one token, everything in one process."""

from pathlib import Path
from typing import Any

import httpx

from sharpen import GRPO, LLM, VERL, Trainer, llm_rollout

TASKS = [f"say a token, number {number}" for number in range(4)]


@llm_rollout
async def pick_even(task: str, llm: LLM) -> float:
    """A bandit of tokens: an even id is right."""
    answer = await ask(llm, [{"role": "user", "content": task}], max_tokens=1)
    return float(answer["choices"][0]["token_ids"][0] % 2 == 0)


async def ask(llm: LLM, messages: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        body = {"model": llm.model, "messages": messages, "return_token_ids": True, **more}
        response = await client.post(f"{llm.endpoint}/chat/completions", json=body)
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


def small_grpo(model: Path, **more: Any) -> GRPO:
    options: dict[str, Any] = {
        "group_size": 8,
        "batch_size": 4,
        "learning_rate": 1e-2,
        "steps": 2,
        "max_response_length": 8,
        "seed": 1,
    }
    return GRPO(model, **(options | more))


def fit(algorithm: VERL, folder: Path, agent: Any = pick_even, **more: Any) -> Trainer:
    """Run to the end, in one process with a store in memory, and give the trainer."""
    options: dict[str, Any] = {"strategy": "shm", "store": "memory", "n_runners": 1, "run_dir": folder}
    fit_options = {name: more.pop(name) for name in ("resume", "val_dataset") if name in more}
    trainer = Trainer(algorithm=algorithm, **(options | more))
    trainer.fit(agent, TASKS, **fit_options)
    return trainer
