"""A prompt optimiser of one's own, written as a plain function, with algorithm and runner as two commands.

    python examples/apo_custom_algorithm.py algorithm     # serves the store, and improves the prompt
    python examples/apo_custom_algorithm.py runner        # in another terminal: runs the agent, until Ctrl-C

The loop is the smallest that deserves the name: roll the prompt out, show a critic what came of it, let an editor
rewrite it, keep the better one. All that the two commands share is the store. The models are a stand-in (see
`stand_in_model.py`), which the algorithm serves; `apo_custom_algorithm_trainer.py` runs the same through `Trainer`.
What this lacks, `APO` has: many candidates at once, honest comparisons, nothing paid for twice. Needs
`pip install 'sharpen[apo]'`.
"""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

from apo_offline import SEED, Task, date_reader, make_tasks
from openai import AsyncOpenAI
from stand_in_model import StandInModel

from sharpen import (
    LLM,
    EnqueueRolloutRequest,
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    LightningStoreServer,
    LitAgentRunner,
    OtelTracer,
    PromptTemplate,
    TraceToMessages,
)

ROUNDS = 3


async def improve_the_prompt(*, store: LightningStore, train_dataset: Sequence[Task], model_url: str) -> PromptTemplate:
    """The algorithm. It publishes what it tries, and the best at the end."""
    client = AsyncOpenAI(base_url=model_url, api_key="none")
    best, best_reward, review = SEED, -1.0, ""
    for number in range(ROUNDS + 1):
        prompt = best if not review else PromptTemplate(await ask_editor(client, best, review))
        reward, transcript = await roll_out(store, prompt, train_dataset, model_url)
        print(f"[algorithm] round {number}: mean reward {reward:.2f} with {prompt.template!r}", flush=True)
        if reward >= best_reward:
            best, best_reward = prompt, reward
            review = await ask_critic(client, best, transcript)
    await store.add_resources({"prompt": best, "worker": LLM(model_url, "worker")})
    return best


async def roll_out(
    store: LightningStore, prompt: PromptTemplate, tasks: Sequence[Task], model_url: str
) -> tuple[float, str]:
    """The mean reward of a prompt, and what was said."""
    published = await store.add_resources({"prompt": prompt, "worker": LLM(model_url, "worker")})
    requests = [EnqueueRolloutRequest(task, "train", published.resources_id) for task in tasks]
    ids = [each.rollout_id for each in await store.enqueue_many_rollouts(requests)]
    done = await store.wait_for_rollouts(rollout_ids=ids)
    said = [TraceToMessages().adapt((await store.query_spans(rollout_id)).items) for rollout_id in ids[:4]]
    return sum(each.reward or 0.0 for each in done) / len(done), str(said)


async def ask_critic(client: AsyncOpenAI, prompt: PromptTemplate, transcript: str) -> str:
    return await ask(client, "critic", f"<template>\n{prompt.template}\n</template>\nWhat is wrong? {transcript}")


async def ask_editor(client: AsyncOpenAI, prompt: PromptTemplate, review: str) -> str:
    said = await ask(client, "editor", f"<template>\n{prompt.template}\n</template>\nRewrite it: {review}")
    return said.partition("<new_template>\n")[2].partition("\n</new_template>")[0]


async def ask(client: AsyncOpenAI, model: str, text: str) -> str:
    messages: list[Any] = [{"role": "user", "content": text}]
    return (await client.chat.completions.create(model=model, messages=messages)).choices[0].message.content or ""


async def run_algorithm(port: int) -> None:
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=port)
    await server.start()
    print(f"[algorithm] the store is at {server.endpoint}: start a runner", flush=True)
    try:
        with StandInModel() as model:
            await improve_the_prompt(store=store, train_dataset=make_tasks(16, seed=1), model_url=model.base_url)
    finally:
        await server.stop()
        await store.close()


async def run_runner(port: int) -> None:
    store = LightningStoreClient(f"http://127.0.0.1:{port}")
    runner = LitAgentRunner[Task](OtelTracer(), concurrency=8)
    with runner.run_context(agent=date_reader, store=store):
        print("[runner] waiting for rollouts", flush=True)
        await runner.iter()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("role", choices=["algorithm", "runner"])
    parser.add_argument("--port", type=int, default=4747)
    arguments = parser.parse_args()
    asyncio.run((run_algorithm if arguments.role == "algorithm" else run_runner)(arguments.port))


if __name__ == "__main__":
    main()
