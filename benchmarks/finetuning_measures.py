"""One fine-tuning run, through our wrappers or on plain TRL, with the same settings; prints one JSON line.

    python benchmarks/finetuning_measures.py sft --package sharpen --lora
    python benchmarks/finetuning_measures.py grpo --package trl --lora --model FOLDER --steps 2

The clock of the loop runs from the beginning of the first step to the end of the last, with its logging. Both sides
then save a checkpoint with the state of the optimiser, and the model; that counts for the whole run only.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal

from finetuning_models import rows

LEARNING_RATE, WARMUP, SEED = 1e-4, 1, 42
LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}


@dataclass(frozen=True)
class Work:
    """What one run does, whoever does it."""

    algorithm: Literal["sft", "grpo"]
    model: str
    lora: bool = False
    steps: int = 4
    batch: int = 2
    """Rows of a step; in GRPO prompts."""
    prompt_words: int = 12
    completion_words: int = 36
    generations: int = 8
    new_tokens: int = 32
    precision: Literal["fp32", "bf16"] = "fp32"
    checkpointing: bool = False
    """Of gradients: activations are computed twice."""
    device: Literal["cpu", "cuda"] = "cpu"
    logging_steps: int = 1
    saves: bool = True

    def rows(self) -> list[dict[str, Any]]:
        words = 0 if self.algorithm == "grpo" else self.completion_words
        return rows(self.batch * self.steps, prompt_words=self.prompt_words, completion_words=words)


class Done(Exception):
    """Raised after the last step of a run that shall not be saved."""


@dataclass
class Clock:
    """Notes when the first step begins and when a step was logged, in seconds of the CPU or of the wall.

    Between two logs nothing waits for the device but what trains.
    """

    work: Work
    noted: list[float] = field(default_factory=list)
    reported: list[dict[str, float]] = field(default_factory=list)

    def now(self) -> float:
        if self.work.device == "cpu":
            return time.process_time()
        import torch

        torch.cuda.synchronize()
        return time.perf_counter()

    def begin(self) -> None:
        if not self.noted:
            self.noted.append(self.now())

    def end(self, metrics: Mapping[str, Any]) -> None:
        if "loss" not in metrics:
            return
        self.noted.append(self.now())
        self.reported.append({name: float(metrics[name]) for name in ("loss", "reward") if name in metrics})
        if len(self.reported) * self.work.logging_steps == self.work.steps and not self.work.saves:
            raise Done

    def figures(self) -> dict[str, Any]:
        return {
            "loop_seconds": self.noted[-1] - self.noted[0],
            "step_seconds": [round((end - begin) / self.work.logging_steps, 5) for begin, end in pairwise(self.noted)],
            "reported": self.reported,
        }


def reward(completions: Sequence[Any], **columns: Any) -> list[float]:
    """Something that differs from one completion to the next."""
    texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [sum(map(ord, text)) % 97 / 97 for text in texts]


# -- ours --------------------------------------------------------------------------------------------


def run_sharpen(work: Work, folder: str, clock: Clock) -> None:
    from sharpen.callbacks import Callback
    from sharpen.llm import GRPOTrainerWrapper, SFTTrainerWrapper, create_lora_config

    class Watch(Callback):
        def on_iter_start(self, loop: Any, trained: Any, /) -> None:
            clock.begin()

        def on_iter_end(self, loop: Any, trained: Any, /) -> None:
            clock.end(loop.metrics)

    options: dict[str, Any] = {
        "batch_size": work.batch,
        "learning_rate": LEARNING_RATE,
        "warmup": WARMUP,
        "max_steps": work.steps,
        "logging_steps": work.logging_steps,
        "save_steps": 0,
        "precision": work.precision,
        "gradient_checkpointing": work.checkpointing,
        "seed": SEED,
        "callbacks": [Watch()],
    }
    if work.lora:
        options |= {"use_lora": True, "lora_config": create_lora_config(**LORA)}
    if work.algorithm == "sft":
        SFTTrainerWrapper(work.model, work.rows(), folder, **options).train()
        return
    options |= {"num_generations": work.generations, "max_new_tokens": work.new_tokens}
    GRPOTrainerWrapper(work.model, work.rows(), reward, folder, **options).train()


# -- plain TRL ---------------------------------------------------------------------------------------


def run_trl(work: Work, folder: str, clock: Clock) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            clock.begin()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
            clock.end(logs)

    # A frozen base is held in what it computes in; weights that are trained are float32.
    dtype = torch.bfloat16 if work.precision == "bf16" and work.lora else torch.float32
    trainer = _trl_trainer(
        work,
        folder,
        model=AutoModelForCausalLM.from_pretrained(work.model, dtype=dtype, use_safetensors=True),
        processing_class=AutoTokenizer.from_pretrained(work.model),
        train_dataset=Dataset.from_list(work.rows()),
        peft_config=_trl_lora() if work.lora else None,
        callbacks=[Watch()],
    )
    trainer.train()
    trainer.save_model(folder)


def _trl_trainer(work: Work, folder: str, **parts: Any) -> Any:
    trl: Any = import_module("trl")

    options: dict[str, Any] = {
        "output_dir": folder,
        "max_steps": work.steps,
        "per_device_train_batch_size": work.batch,
        "learning_rate": LEARNING_RATE,
        "warmup_steps": WARMUP,
        "logging_steps": work.logging_steps,
        "save_strategy": "steps",
        "save_steps": work.steps,
        "seed": SEED,
        "bf16": work.precision == "bf16",
        "gradient_checkpointing": work.checkpointing,
        "use_cpu": work.device == "cpu",
        "dataloader_pin_memory": work.device != "cpu",
        "report_to": "none",
        "disable_tqdm": True,
    }
    if work.algorithm == "sft":
        return trl.SFTTrainer(args=trl.SFTConfig(**options), **parts)
    options["per_device_train_batch_size"] = work.batch * work.generations
    options |= {"num_generations": work.generations, "max_completion_length": work.new_tokens}
    return trl.GRPOTrainer(reward_funcs=[reward], args=trl.GRPOConfig(**options), **parts)


def _trl_lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(**LORA, task_type="CAUSAL_LM")


# -- one measure -------------------------------------------------------------------------------------

RUNS: Mapping[str, Callable[[Work, str, Clock], None]] = {"sharpen": run_sharpen, "trl": run_trl}


def measure(package: str, work: Work) -> dict[str, Any]:
    """Train in a folder that is gone afterwards."""
    clock = Clock(work)
    with tempfile.TemporaryDirectory(prefix="sharpen-bench-", ignore_cleanup_errors=True) as folder, suppress(Done):
        RUNS[package](work, folder, clock)
    return clock.figures()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", choices=["sft", "grpo"])
    parser.add_argument("--package", choices=["sharpen", "trl"], default="sharpen")
    parser.add_argument("--model", default="", help="a model folder (default: SmolLM2-135M)")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=2, help="rows of a step; in GRPO prompts")
    chosen = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(1)
    model = chosen.model
    if not model:
        from sharpen.llm import demo_model

        model = demo_model()
    work = Work(chosen.measure, model, lora=chosen.lora, steps=chosen.steps, batch=chosen.batch)
    print(json.dumps(measure(chosen.package, work)))


if __name__ == "__main__":
    main()
