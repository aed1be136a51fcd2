"""Policies on tiny models, and samples for them to learn from."""

import random
from pathlib import Path
from typing import Any, Unpack

from sharpen.llm.engine import SamplingParams
from tests.llm.internals import LocalOptions, LocalPolicy, TrainingSample

WAYS: list[LocalOptions] = [{}, {"trainable": "top:1"}, {"lora_rank": 4, "lora_alpha": 8}]
WAY_NAMES = ["all", "top", "lora"]


def policy(folder: Path, **options: Unpack[LocalOptions]) -> LocalPolicy:
    chosen: LocalOptions = {"device": "cpu", "learning_rate": 1e-2, **options}
    return LocalPolicy(folder, **chosen)


def prompts(seed: int = 0, *, count: int = 2, length: int = 24) -> list[list[int]]:
    """Prompts that begin the same, as those of one task do."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 380) for _ in range(length // 2)]
    return [shared + [rng.randrange(3, 380) for _ in range(length - len(shared))] for _ in range(count)]


def sampled(
    policy: LocalPolicy, *, n: int = 3, max_new_tokens: int = 6, temperature: float = 1.0, seed: int = 0
) -> list[TrainingSample]:
    """What the policy samples, with an advantage for each sample."""
    params = SamplingParams(max_new_tokens=max_new_tokens, n=n, temperature=temperature)
    return [
        sample_of(each.prompt_ids, one.token_ids, one.logprobs, advantage=number - 0.7, temperature=temperature)
        for each in policy.sample(prompts(seed), params)
        for number, one in enumerate(each.samples)
    ]


def sample_of(
    prompt_ids: list[int], response_ids: list[int], logprobs: list[float], *, advantage: float, **options: Any
) -> TrainingSample:
    before, count = len(prompt_ids), len(response_ids)
    return TrainingSample(
        token_ids=prompt_ids + response_ids,
        loss_mask=[False] * before + [True] * count,
        advantages=[0.0] * before + [advantage] * count,
        old_logprobs=[0.0] * before + logprobs,
        **options,
    )


def random_samples(seed: int, *, count: int = 5, vocab: int = 380) -> list[TrainingSample]:
    """Sequences of different lengths and masks, some with a common beginning, one with nothing to train."""
    rng = random.Random(seed)
    beginning = [rng.randrange(3, vocab) for _ in range(20)]
    samples = []
    for number in range(count):
        ids = (beginning if number % 2 else []) + [rng.randrange(3, vocab) for _ in range(rng.randint(2, 25))]
        samples.append(
            TrainingSample(
                token_ids=ids,
                loss_mask=[number != 2 and rng.random() < 0.6 for _ in ids],
                advantages=[rng.gauss(0, 1) for _ in ids],
                old_logprobs=[-5.9 + rng.gauss(0, 0.2) for _ in ids],
                ref_logprobs=[-5.9 + rng.gauss(0, 0.2) for _ in ids],
                temperature=(1.0, 0.7, 1.3)[number % 3],
            )
        )
    return samples
