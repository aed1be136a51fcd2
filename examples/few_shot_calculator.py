"""A small model learns from its own lucky answers which examples to be shown: no training, no second model.

    python examples/few_shot_calculator.py        # about two minutes on two cores

SmolLM2-135M-Instruct shall write "What is 73 times 81?" as CALC(73*81). Told so in words, its likeliest answer is never
right. Sampled, a few answers in a hundred are, and FewShot shows those to it. At the end: what the prompt was worth
before and after on tasks that it has not met, the candidates as a tree, and what was added to the prompt.

The model is asked to complete a text (`/v1/completions`). In a chat message of its own, examples tell a model of this
size nothing. Needs `pip install 'sharpen[llm,demo]' openai`.
"""

import asyncio
import time

from calculator_agent import ANSWER_TOKENS, TOOL, Task, open_client, plain_tasks

from sharpen import LLM, PromptTemplate, Trainer, rollout
from sharpen.algorithm.few_shot import FewShot
from sharpen.llm import demo_model

SEED = PromptTemplate(f"{TOOL}\n\nQuestion: {{question}}\nTool call:")
TRAIN, VAL, HELD_OUT = plain_tasks(300, seed=1)[:200], plain_tasks(300, seed=1)[200:232], plain_tasks(300, seed=1)[236:]


async def ask(llm: LLM, prompt: str) -> str:
    """What the model writes on the line of the question."""
    client = open_client().with_options(base_url=llm.get_base_url(), api_key=llm.resolve_api_key() or "none")
    said = await client.completions.create(model=llm.model, prompt=prompt, stop=["\n"], **llm.sampling_parameters)
    return said.choices[0].text.strip()


@rollout
async def calculator_agent(task: Task, prompt_template: PromptTemplate, llm: LLM) -> float:
    """The reward is 1 for exactly the right call, else 0."""
    return float(await ask(llm, prompt_template.format(question=task["question"])) == task["answer"])


def share_right(*prompts: PromptTemplate) -> list[float]:
    """The likeliest answers to tasks that no search has met."""
    from sharpen.llm.engine import Engine
    from sharpen.llm.models.loading import load_model
    from sharpen.llm.server import EngineServer

    async def right(prompt: PromptTemplate) -> float:
        asked = (ask(llm, prompt.format(question=task["question"])) for task in HELD_OUT)
        answers = await asyncio.gather(*asked)
        return sum(answer == task["answer"] for answer, task in zip(answers, HELD_OUT, strict=True)) / len(HELD_OUT)

    async def each() -> list[float]:
        return [await right(prompt) for prompt in prompts]

    loaded = load_model(demo_model())
    with EngineServer(Engine(loaded.model, loaded.tokenizer), loaded.tokenizer, name="calculator") as server:
        greedy = {"temperature": 0.0, "max_tokens": ANSWER_TOKENS}
        llm = LLM(server.base_url, "calculator", sampling_parameters=greedy)
        return asyncio.run(each())


def main() -> None:
    search = FewShot(
        candidates=8, explore_temperature=0.5, model=demo_model(), max_response_tokens=ANSWER_TOKENS, seed=1
    )
    began = time.monotonic()
    Trainer(algorithm=search, initial_resources={"prompt": SEED}, name="few-shot").fit(calculator_agent, TRAIN, VAL)
    seconds = time.monotonic() - began
    before, after = share_right(SEED, search.get_best_prompt())
    print(f"\n{search.tree()}\n\n{search.best_diff()}")
    print(f"right on {len(HELD_OUT)} held-out tasks: {before:.2f} before, {after:.2f} after {seconds:.0f} s of search")


if __name__ == "__main__":
    main()
