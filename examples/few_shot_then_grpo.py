"""First the prompt, then the weights: FewShot finds demonstrations, GRPO trains the model behind that prompt.

    python examples/few_shot_then_grpo.py [--steps 8]     # some minutes on two cores

The agent of `few_shot_calculator.py` now has word problems as well. At first no answer is right, so there is nothing
that GRPO could make likelier: all answers to a task are worth the same. With the demonstrations that FewShot finds some
are right, and GRPO learns from the difference. Both are stages of one run: `Trainer(algorithm=[FewShot(...),
GRPO(...)])`. Each begins with the resources that the one before published; a run that is broken off goes on in the
right one (`fit(..., resume="last")`). Needs `pip install 'sharpen[llm,demo]' openai`.
"""

import argparse
import asyncio
from pathlib import Path

from calculator_agent import ANSWER_TOKENS, Task, plain_tasks, story_tasks
from few_shot_calculator import SEED, ask, calculator_agent

from sharpen import GRPO, LLM, FewShot, PromptTemplate, Trainer
from sharpen.llm import demo_model

NUM_HELD_OUT = 60


def mixed_tasks(count: int, *, seed: int) -> list[Task]:
    """Plain questions and word problems in turn."""
    pairs = zip(plain_tasks(count // 2, seed=seed), story_tasks(count // 2, seed=seed), strict=True)
    return [task for pair in pairs for task in pair]


async def share_right(model: str | Path, prompt: PromptTemplate, tasks: list[Task]) -> float:
    """Answers of a model as it is trained: sampled at temperature 1."""
    from sharpen.llm import load_model
    from sharpen.llm.engine import Engine
    from sharpen.llm.server import EngineServer

    loaded = load_model(model)
    with EngineServer(Engine(loaded.model, loaded.tokenizer), loaded.tokenizer, name="calculator", seed=1) as server:
        llm, sampled = LLM(server.base_url, "calculator"), {"temperature": 1.0, "max_tokens": ANSWER_TOKENS}
        prompts = [prompt.format(question=task["question"]) for task in tasks]
        answers = await asyncio.gather(*(ask(llm, each, **sampled) for each in prompts))
    return sum(answer == task["answer"] for answer, task in zip(answers, tasks, strict=True)) / len(tasks)


async def compare(best: PromptTemplate, trained: Path, tasks: list[Task]) -> str:
    first = await share_right(demo_model(), SEED, tasks)
    prompted = await share_right(demo_model(), best, tasks)
    after = await share_right(trained, best, tasks)
    return f"{first:.2f} at first, {prompted:.2f} after FewShot, {after:.2f} after GRPO"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=8)
    steps, candidates = parser.parse_args().steps, parser.parse_args().candidates
    tasks = mixed_tasks(240, seed=1)
    train, val, held_out = tasks[: -NUM_HELD_OUT - 24], tasks[-NUM_HELD_OUT - 24 : -NUM_HELD_OUT], tasks[-NUM_HELD_OUT:]
    few_shot = FewShot(
        model=demo_model(),
        candidates=candidates,
        explore_temperature=0.5,
        max_response_tokens=ANSWER_TOKENS,
        perfect_reward=1.0,
        seed=1,
    )
    grpo = GRPO(
        demo_model(),
        group_size=8,
        batch_size=8,
        steps=steps,
        learning_rate=1e-4,
        trainable="top:8",  # of 30 layers
        max_response_length=ANSWER_TOKENS,
        seed=1,
        precision="fp32",
    )
    trainer = Trainer(algorithm=[few_shot, grpo], initial_resources={"prompt": SEED}, seed=1)
    result = trainer.fit(calculator_agent, train, val)
    assert result.run_dir is not None
    trained = grpo.save_model(result.run_dir / "trained")
    told = asyncio.run(compare(few_shot.get_best_prompt(), trained, held_out))
    print(f"\nright on {len(held_out)} held-out tasks: {told}")


if __name__ == "__main__":
    main()
