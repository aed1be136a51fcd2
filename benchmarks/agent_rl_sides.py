"""Steps of GRPO with one model, by our policy and engine or by TRL; one JSON line for each job.

    python benchmarks/agent_rl_sides.py sharpen --jobs 1.07B:256 135M:64
    python benchmarks/agent_rl_sides.py trl --device cpu --jobs tiny:16 --new-tokens 8

A job is a shape and its completions a step. Both sides sample the same number of tokens from prompts of the same
length, score them with the same function, and train on all of them with the same settings. The seconds of a step are
those from its first prompt to its changed weights, with the device idle at both ends.
"""

import argparse
import gc
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from finetuning_models import rows, write_model

LEARNING_RATE = 1e-5
LORA_RANK, LORA_ALPHA = 16, 32

Figures = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What one side does."""

    shape: str
    completions: int
    options: argparse.Namespace
    folder: Path

    def model(self) -> str:
        """A folder with random weights of this shape; `smollm2` is the real model of that name."""
        if self.shape == "smollm2":
            from sharpen.llm import demo_model

            return demo_model()
        folder = self.folder / self.shape
        if not folder.exists():
            kind = "bfloat16" if self.is_cuda else "float32"
            write_model(self.shape, folder, device=self.options.device, dtype=kind)
        return str(folder)

    @property
    def is_cuda(self) -> bool:
        return bool(self.options.device == "cuda")

    def prompts(self, count: int) -> list[dict[str, Any]]:
        return rows(count, prompt_words=self.options.prompt_words, completion_words=0)


@dataclass
class Clock:
    """Seconds by phase, of the wall on a GPU and of the CPU elsewhere."""

    is_cuda: bool
    noted: dict[str, list[float]] = field(default_factory=dict)

    def now(self) -> float:
        if not self.is_cuda:
            return time.process_time()
        import torch

        torch.cuda.synchronize()
        return time.perf_counter()

    def note(self, name: str, began: float) -> float:
        ended = self.now()
        self.noted.setdefault(name, []).append(ended - began)
        return ended


def reward(token_ids: list[int]) -> float:
    """As good as any other for the time that training takes: half of the completions are better."""
    return float(sum(token_ids) % 2)


# -- ours --------------------------------------------------------------------------------------------


def of_sharpen(job: Job) -> Figures:
    """Engine and policy called directly."""
    from sharpen.llm.engine import SamplingParams
    from sharpen.llm.policy.policy import LocalPolicy
    from sharpen.llm.policy.settings import LossSettings

    options, clock = job.options, Clock(job.is_cuda)
    room = job.completions * (options.prompt_words + options.new_tokens + 64)
    policy = LocalPolicy(
        job.model(),
        lora_rank=LORA_RANK if options.lora else 0,
        lora_alpha=LORA_ALPHA,
        precision="bf16" if job.is_cuda else "fp32",
        device=options.device,
        gradient_checkpointing=False,
        micro_batch_size=None,
        token_budget=options.token_budget,
        learning_rate=LEARNING_RATE,
        compiles=options.compiles,
        engine_options={"max_batch": job.completions, "max_tokens": room},
    )
    params = SamplingParams(max_new_tokens=options.new_tokens, ignore_eos=True, n=options.group)
    metrics: dict[str, float] = {}
    for step in range(options.steps):
        prompts = job.prompts((step + 1) * job.completions // options.group)[-(job.completions // options.group) :]
        ids = [
            policy.tokenizer.apply_chat_template(each["prompt"], add_generation_prompt=True, return_dict=False)
            for each in prompts
        ]
        began = clock.now()
        generations = policy.sample(ids, params)
        trained = clock.note("generate", began)
        metrics = policy.forward_backward(training_samples(generations), LossSettings())
        clock.note("forward_backward", trained)
        policy.optim_step()
        clock.note("train", trained)
        clock.note("step", began)
    return figures(job, "sharpen", clock) | {"ratio_of_sampler_and_trainer": round(metrics["ratio"], 5)}


def training_samples(generations: list[Any]) -> list[Any]:
    """Every completion with its advantage in its group."""
    import torch

    from sharpen.llm.policy.advantages import turn_advantages
    from sharpen.llm.policy.samples import TrainingSample

    pairs = [(group, each, sample) for group, each in enumerate(generations) for sample in each.samples]
    rewards = torch.tensor([reward(sample.token_ids) for _, _, sample in pairs])
    group_N = torch.tensor([group for group, _, _ in pairs])
    found = turn_advantages(rewards, torch.arange(len(pairs)), group_N).advantages.tolist()
    return [
        TrainingSample(
            token_ids=[*each.prompt_ids, *sample.token_ids],
            loss_mask=[False] * len(each.prompt_ids) + [True] * len(sample.token_ids),
            advantages=[0.0] * len(each.prompt_ids) + [advantage] * len(sample.token_ids),
            old_logprobs=[0.0] * len(each.prompt_ids) + sample.logprobs,
        )
        for (_, each, sample), advantage in zip(pairs, found, strict=True)
    ]


# -- the peer ----------------------------------------------------------------------------------------


def of_trl(job: Job) -> Figures:
    """TRL's trainer with the settings that make it do the same."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    trl: Any = import_module("trl")
    options, clock = job.options, Clock(job.is_cuda)

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = clock.now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.note("step", self.began)

    class Timed(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
            began = clock.now()
            answer = super()._generate_single_turn(*given, **named)
            clock.note("generate", began)
            return answer

    model = AutoModelForCausalLM.from_pretrained(job.model(), dtype=torch.bfloat16 if job.is_cuda else torch.float32)
    count = options.steps * job.completions // options.group
    config = trl.GRPOConfig(
        output_dir=str(job.folder / "trl"),
        max_steps=options.steps,
        per_device_train_batch_size=job.completions,
        num_generations=options.group,
        max_completion_length=options.new_tokens,
        generation_kwargs={"min_new_tokens": options.new_tokens},
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        bf16=job.is_cuda,
        use_cpu=not job.is_cuda,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )

    def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [reward(each) for each in completion_ids]

    trainer: Any = Timed(
        model=model,
        reward_funcs=[rewards],
        args=config,
        train_dataset=Dataset.from_list(job.prompts(count)),
        processing_class=AutoTokenizer.from_pretrained(job.model()),
        peft_config=lora_config() if options.lora else None,
        callbacks=[Steps()],
    )
    trainer.train()
    return figures(job, "trl", clock)


def lora_config() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=LORA_RANK, lora_alpha=LORA_ALPHA, lora_dropout=0.0, target_modules="all-linear")


# -- figures -----------------------------------------------------------------------------------------


def figures(job: Job, side: str, clock: Clock) -> Figures:
    """Medians of the steps after the first two; the first one alone; the most memory."""
    options = job.options
    seconds = {name: round(statistics.median(values[2:] or values), 4) for name, values in clock.noted.items()}
    tokens = job.completions * options.new_tokens
    found: Figures = {
        "bench": "agent_rl",
        "side": side,
        "device": options.device,
        "shape": job.shape,
        "completions": job.completions,
        "new_tokens": options.new_tokens,
        "lora": options.lora,
        "seconds_are": "wall" if job.is_cuda else "cpu",
        "seconds": seconds,
        "first_step_seconds": round(clock.noted["step"][0], 3),
        "all_steps_seconds": [round(each, 4) for each in clock.noted["step"]],
        "generated_tokens_per_second": round(tokens / seconds["generate"]),
        "tokens_per_second": round(tokens / seconds["step"]),
    }
    if job.is_cuda:
        import torch

        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    else:
        found["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1)
    return found


SIDES: dict[str, Callable[[Job], Figures]] = {"sharpen": of_sharpen, "trl": of_trl}


def forget(device: str) -> None:
    """Leave the next job the whole device."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("side", choices=SIDES)
    add_options(found)
    return found


def add_options(found: argparse.ArgumentParser) -> None:
    found.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    found.add_argument("--jobs", nargs="+", default=["1.07B:256", "1.07B:64", "135M:64"], help="shape:completions")
    found.add_argument("--group", type=int, default=8, help="completions of one prompt")
    found.add_argument("--new-tokens", type=int, default=256)
    found.add_argument("--prompt-words", type=int, default=38, help="a prompt has five tokens more")
    found.add_argument("--steps", type=int, default=6)
    found.add_argument("--token-budget", type=int, default=None, help="of our micro-batches")
    found.add_argument("--lora", action="store_true")
    found.add_argument("--compiles", action="store_true", help="whether our policy has torch compile its layers")


def main() -> None:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory() as place:
        for name in options.jobs:
            shape, _, completions = name.partition(":")
            job = Job(shape, int(completions), options, Path(place))
            print(json.dumps(SIDES[options.side](job)), flush=True)
            forget(options.device)


if __name__ == "__main__":
    main()
