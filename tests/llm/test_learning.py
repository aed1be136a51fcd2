"""SFT teaches a real model: to hand arithmetic to a calculator, without an example in the prompt."""

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen.llm import SFTTrainerWrapper, create_lora_config, demo_model, evaluate
from tests.llm.internals import Completion, completion_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Question = tuple[int, str, int]

SYSTEM = "Answer with one word or number only."
CALCULATOR = "You have a calculator. To use it, write CALC(expression), for example CALC(3*5). Do not compute yourself."
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
HELD_OUT = 60

FULL = {"learning_rate": 5e-5}
LORA = {
    "learning_rate": 1e-3,
    "use_lora": True,
    "lora_config": create_lora_config(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="full"),
}


def questions(count: int, *, seed: int) -> list[Question]:
    """Different questions about two numbers of two digits."""
    every = [(one, word, other) for one in range(10, 100) for word in SIGNS for other in range(10, 100)]
    return random.Random(seed).sample(every, count)


def row(question: Question) -> dict[str, Any]:
    one, word, other = question
    asked = f"{CALCULATOR}\nQuestion: What is {one} {word} {other}?"
    return {
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}],
        "completion": [{"role": "assistant", "content": f"CALC({one}{SIGNS[word]}{other})"}],
    }


def exact_match(completions: list[Completion], ground_truth: list[str]) -> list[float]:
    pairs = zip(completions, ground_truth, strict=True)
    return [float(completion_text(completion) == truth) for completion, truth in pairs]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The model for demonstrations; it takes 0.5 GB, so that it does not stay behind."""
    torch.set_num_threads(1)
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARPEN_CACHE", os.environ.get("SHARPEN_CACHE", str(cache)))
        yield demo_model()
    shutil.rmtree(cache)


@pytest.fixture
def output_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "sft"
    shutil.rmtree(tmp_path / "sft", ignore_errors=True)


def share_right(model: str | Path, held_out: list[dict[str, Any]]) -> float:
    result = evaluate(str(model), held_out, exact_match, max_new_tokens=16, batch_size=20)
    return float(result["accuracy"])


@pytest.fixture(scope="module")
def held_out() -> list[dict[str, Any]]:
    return [row(question) for question in questions(48 + HELD_OUT, seed=7)[48:]]


@pytest.fixture(scope="module")
def share_before(model: str, held_out: list[dict[str, Any]]) -> float:
    return share_right(model, held_out)


@pytest.mark.parametrize(("num_rows", "settings"), [(32, FULL), (48, LORA)], ids=["full", "lora"])
def test_a_real_model_learns_to_call_a_calculator(
    model: str,
    held_out: list[dict[str, Any]],
    share_before: float,
    output_dir: Path,
    num_rows: int,
    settings: dict[str, Any],
) -> None:
    rows = [row(question) for question in questions(48 + HELD_OUT, seed=7)[:num_rows]]
    assert not [each for each in rows if each in held_out]
    assert share_before <= 0.05

    start = time.process_time()
    trainer = SFTTrainerWrapper(
        model, rows, output_dir, num_epochs=1, batch_size=4, seed=42, save_steps=0, loggers=[], **settings
    )
    result = trainer.train()
    share_after = share_right(result["output_dir"], held_out)
    seconds = time.process_time() - start
    print(f"exact match {share_before:.2f} -> {share_after:.2f}, {result['steps']} steps, {seconds:.0f} CPU-seconds")

    assert result["steps"] == num_rows / 4
    assert share_after >= 0.9
    assert seconds < 300  # One thread; the promise is five minutes on two idle cores.
