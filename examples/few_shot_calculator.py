"""A small model is shown its own lucky answers, and gets it right from then on: no training, no second model.

    python examples/few_shot_calculator.py              # about a minute on two cores
    python examples/few_shot_calculator.py runs/<run>   # goes on with a run that was broken off

SmolLM2-135M-Instruct shall write "What is 73 times 81?" as CALC(73*81). Told so in words, its likeliest answer is never
right; of answers that are sampled at temperature 0.5, about one in sixty is. FewShot finds a few of those and chooses
which to show in the prompt. At the end: how many answers are right before and after, on tasks that the search has not
met, and what was added to the prompt. Five searches with other luck each went from 0.00 to 1.00 in 80 to 335 rollouts.

The model is asked to complete a text (`/v1/completions`). In a message of a chat, examples change nothing for a model
of this size: it talks about them. Needs `pip install 'sharpen[llm,demo]' openai`.
"""

import argparse
import asyncio
from typing import Any

from calculator_agent import ANSWER_TOKENS, TOOL, Task, open_client, plain_tasks

from sharpen import LLM, FewShot, PromptTemplate, Trainer, rollout
from sharpen.llm import demo_model

SEED = PromptTemplate(f"{TOOL}\n\nQuestion: {{question}}\nTool call:")
TASKS = plain_tasks(296, seed=1)
TRAIN, VAL, HELD_OUT = TASKS[:200], TASKS[200:232], TASKS[232:]


async def ask(llm: LLM, prompt: str, **sampling: Any) -> str:
    """What the model writes on the line of the question."""
    client = open_client().with_options(base_url=llm.get_base_url(), api_key=llm.resolve_api_key() or "none")
    said = await client.completions.create(model=llm.model, prompt=prompt, stop=["\n"], **sampling)
    return str(said.choices[0].text).strip()


@rollout
async def calculator_agent(task: Task, prompt_template: PromptTemplate, llm: LLM) -> float:
    """The reward is 1 for exactly the right call, else 0."""
    return float(await ask(llm, prompt_template.format(question=task["question"])) == task["answer"])


def share_right(*prompts: PromptTemplate) -> list[float]:
    """The likeliest answers to tasks that no search has met."""
    from sharpen.llm import load_model
    from sharpen.llm.engine import Engine
    from sharpen.llm.server import EngineServer

    async def right(prompt: PromptTemplate) -> float:
        asked = (ask(llm, prompt.format(question=task["question"]), temperature=0) for task in HELD_OUT)
        answers = await asyncio.gather(*asked)
        return sum(answer == task["answer"] for answer, task in zip(answers, HELD_OUT, strict=True)) / len(HELD_OUT)

    async def each() -> list[float]:
        return [await right(prompt) for prompt in prompts]

    loaded = load_model(demo_model())
    engine = Engine(loaded.model, loaded.tokenizer)
    with EngineServer(engine, loaded.tokenizer, name="calculator", max_response_tokens=ANSWER_TOKENS) as server:
        llm = LLM(server.base_url, "calculator")
        return asyncio.run(each())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("run", nargs="?", help="the folder of a run to go on with")
    resume = parser.parse_args().run
    search = FewShot(
        explore_temperature=0.5, model=demo_model(), max_response_tokens=ANSWER_TOKENS, perfect_reward=1.0, seed=1
    )
    trainer = Trainer(algorithm=search, initial_resources={"prompt": SEED}, name="few-shot")
    result = trainer.fit(calculator_agent, TRAIN, VAL, resume=resume)
    before, after = share_right(SEED, search.get_best_prompt())
    print(f"\n{search.best_diff()}\n")
    print(f"right on {len(HELD_OUT)} held-out tasks: {before:.2f} before, {after:.2f} after")
    print(f"{result.seconds:.0f} s of search; the tree of candidates: {result.run_dir}/prompts/candidates.txt")


if __name__ == "__main__":
    main()
