"""An agent that sums numbers, three prompts to choose from, three runner processes, one of them killed on the way.

    python examples/prompts_and_a_killed_runner.py [--tasks 200] [--runners 3]

The agent is a stand-in for a model: how often it is right depends on the prompt. The algorithm publishes each prompt in
turn, has it tried on all tasks, and keeps the best. In the middle of it one runner is killed with SIGKILL while it has
a rollout in hand: the rollout is tried again by another runner, the runner is replaced, and nothing is lost.
"""

import argparse
import asyncio
import os
import random
import signal
import time

from rich.console import Console
from rich.table import Table

from sharpen import EnqueueRolloutRequest, LightningStore, PromptTemplate, Trainer, algo, emit_message, rollout

PROMPTS = ["{a} and {b}?", "What is {a} + {b}?", "Think step by step: what is {a} + {b}?"]
console = Console()


@rollout
def summing_agent(task: dict[str, int], prompt_template: PromptTemplate) -> float:
    """Thinks for a moment; the longer the prompt, the more often it is right."""
    prompt = prompt_template.format(**task)
    time.sleep(random.uniform(0.005, 0.02))
    right = task["a"] + task["b"]
    answer = right if random.random() < 0.3 + len(prompt) / 80 else right + 1
    emit_message(f"{prompt} {answer}")
    return float(answer == right)


@algo
async def choose_the_prompt(*, store: LightningStore, train_dataset: list[dict[str, int]]) -> None:
    """Try every prompt on all tasks and publish the best."""
    scores: dict[str, float] = {}
    for number, text in enumerate(PROMPTS):
        resources = await store.add_resources({"prompt": PromptTemplate(text)})
        requests = [EnqueueRolloutRequest(task, mode="train") for task in train_dataset]
        ids = [each.rollout_id for each in await store.enqueue_many_rollouts(requests)]
        if number == 1:
            await kill_a_runner_at_work(store)
        done = await store.wait_for_rollouts(rollout_ids=ids)
        scores[text] = sum(each.reward or 0 for each in done) / len(done)
    best = max(scores, key=lambda text: scores[text])
    await store.update_resources(resources.resources_id, {"prompt": PromptTemplate(best)})
    show(scores, best)


async def kill_a_runner_at_work(store: LightningStore) -> None:
    """Hold a busy runner still, look whether it has a rollout in hand, and kill it if so; else let it go on."""
    while True:
        for worker in await store.query_workers(status_in=["busy"]):
            pid = (worker.heartbeat_stats or {})["pid"]
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.1)
            held = await store.get_worker_by_id(worker.worker_id)
            if held is not None and held.status == "busy":
                os.kill(pid, signal.SIGKILL)
                console.print(f"runner process {pid} killed with SIGKILL, with a rollout in hand")
                return
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.02)


def show(scores: dict[str, float], best: str) -> None:
    table = Table(title="prompts")
    table.add_column("prompt")
    table.add_column("mean reward", justify="right")
    for text, score in scores.items():
        table.add_row(f"{text}  (published)" if text == best else text, f"{score:.2f}")
    console.print(table)


async def count(store: LightningStore) -> str:
    statistics = await store.statistics()
    done, attempts = statistics["rollouts_by_status"]["succeeded"], statistics["total_attempts"]
    return f"{done} of {statistics['total_rollouts']} rollouts succeeded in {attempts} attempts"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--runners", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.tasks < 20 or arguments.runners < 1:
        parser.error("give at least 20 tasks and 1 runner")
    tasks = [{"a": random.randrange(100), "b": random.randrange(100)} for _ in range(arguments.tasks)]
    trainer = Trainer(algorithm=choose_the_prompt, n_runners=arguments.runners, name="prompts")
    result = trainer.fit(summing_agent, tasks)
    console.print(f"{asyncio.run(count(trainer.store))}; records: {result.run_dir}", soft_wrap=True)


if __name__ == "__main__":
    main()
