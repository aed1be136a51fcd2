"""The policy learns a real task: a small model comes to write CALC(...) for a question."""

import os
import random
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sharpen.llm import demo_model
from sharpen.llm.engine import SamplingParams
from tests.llm.internals import LocalOptions, LocalPolicy, LossSettings, TrainingSample, turn_advantages

from .scenes import sample_of

PROMPTS, SAMPLES = 6, 6
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
QUESTION = (
    "You have a calculator. To use it, write CALC(expression), for example CALC(3*5). Do not compute yourself.\n"
    "Question: What is {} {} {}?"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The model for demonstrations; it takes 0.5 GB, so that it does not stay behind."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARPEN_CACHE", os.environ.get("SHARPEN_CACHE", str(cache)))
        yield demo_model()
    shutil.rmtree(cache)


def task(tokenizer: Any, rng: random.Random) -> tuple[list[int], str]:
    """The ids of a prompt, and the answer that is wanted."""
    a, b, word = rng.randint(10, 99), rng.randint(10, 99), rng.choice(list(SIGNS))
    messages = [
        {"role": "system", "content": "Answer with one word or number only."},
        {"role": "user", "content": QUESTION.format(12, "plus", 34)},
        {"role": "assistant", "content": "CALC(12+34)"},
        {"role": "user", "content": QUESTION.format(a, word, b)},
    ]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids, f"CALC({a}{SIGNS[word]}{b})"


def step(policy: LocalPolicy, rng: random.Random) -> float:
    """One step of GRPO; returns the mean reward."""
    tasks = [task(policy.tokenizer, rng) for _ in range(PROMPTS)]
    answers = policy.sample([ids for ids, _ in tasks], SamplingParams(max_new_tokens=16, n=SAMPLES))
    wanted = [answer for _, answer in tasks for _ in range(SAMPLES)]
    given = [(each.prompt_ids, one) for each in answers for one in each.samples]
    texts = [(one.text or "").strip() for _, one in given]
    rewards = torch.tensor([float(text == answer) for text, answer in zip(texts, wanted, strict=True)])
    group_N = torch.arange(PROMPTS).repeat_interleave(SAMPLES)
    credit = turn_advantages(rewards, torch.arange(len(rewards)), group_N).advantages.tolist()
    samples: list[TrainingSample] = [
        sample_of(prompt_ids, one.token_ids, one.logprobs, advantage=advantage)
        for (prompt_ids, one), advantage in zip(given, credit, strict=True)
        if advantage
    ]
    metrics = policy.forward_backward(samples, LossSettings())
    if samples:
        assert metrics["ratio"] == pytest.approx(1, abs=1e-3)
    policy.optim_step()
    return rewards.mean().item()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"trainable": "top:8", "learning_rate": 1e-4}, {"lora_rank": 8, "learning_rate": 1e-3}], ids=str
)
def test_a_few_steps_teach_a_small_model_to_use_a_calculator(model: str, options: LocalOptions) -> None:
    policy, rng = LocalPolicy(model, device="cpu", **options), random.Random(1)
    rewards = [step(policy, rng) for _ in range(4)]
    assert rewards[0] < 0.6
    assert rewards[-1] > 0.7
