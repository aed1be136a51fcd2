"""Runs to look at: real ones by a trainer, and folders as fine-tuning and simulators leave them."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sharpen import PromptTemplate, prompt_rollout
from sharpen.algorithm import algo
from sharpen.loggers import JsonlLogger
from sharpen.store import LightningStore
from sharpen.trainer import Trainer

# Prints the folder of its run, then waits in its algorithm for whoever kills it.
HANGING = """
import sys, time
from sharpen.algorithm import algo
from sharpen.trainer import Trainer

@algo
def hang(report_iteration):
    report_iteration({"loss": 0.5})
    print("begun", flush=True)
    time.sleep(600)

Trainer(strategy="shm", algorithm=hang, run_dir=sys.argv[1]).fit(lambda task: 1.0, [1])
"""

# Serves as the writer of a store: adds a rollout, says so, and keeps the file open until a line comes.
WRITING = """
import asyncio, sys
from sharpen import SQLiteStore

async def write():
    store = SQLiteStore(sys.argv[1])
    await store.enqueue_rollout(1)
    print("written", flush=True)
    sys.stdin.readline()
    await store.close()

asyncio.run(write())
"""


@contextmanager
def another_writer(store_file: Path) -> Iterator[None]:
    """A process that has a store open for writing."""
    store_file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", WRITING, str(store_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        yield
        process.communicate("\n", timeout=60)


def is_even(task: int) -> float:
    """An agent whose reward is 0 or 1."""
    return float(task % 2 == 0)


def always(task: int) -> float:
    """An agent that is right."""
    return 1.0


def fails(task: int) -> float:
    """An agent that never gets there."""
    raise RuntimeError("no [bold]answer[/bold] \x1b[31mtoday")


def dev_run(folder: Path, agent: Any = is_even, *, val: Sequence[int] = range(10), **options: Any) -> Path:
    """A run of `Baseline` in this process, with a store file."""
    Trainer(strategy="shm", run_dir=folder, **options).dev(agent, [1, 2], list(val))
    return folder


@algo
async def lengthen(store: LightningStore, val_dataset: Any, report_iteration: Any) -> None:
    """Tries three prompts; the second is the best."""
    for step, text in enumerate((">", ">>>", ">>")):
        resources = await store.add_resources({"prompt": PromptTemplate(text)})
        asked = [await store.enqueue_rollout(task, "val", resources.resources_id) for task in val_dataset]
        ended = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in asked])
        mean = sum(each.reward or 0.0 for each in ended) / len(ended)
        report_iteration({"loss": 1.0 / (step + 1)}, val_metrics={"reward_mean": mean})


@prompt_rollout
def measure(task: int, prompt_template: PromptTemplate) -> float:
    """An agent that tells how long its prompt is, and a little of its task."""
    return len(prompt_template.template) + task / 100


def prompt_run(folder: Path) -> Path:
    """A run of an algorithm of the user's own that publishes prompts."""
    Trainer(strategy="shm", algorithm=lengthen, run_dir=folder).fit(measure, [1], [1, 2, 3])
    return folder


def failed_run(folder: Path) -> Path:
    """A run whose algorithm raises."""

    @algo
    def broken(report_iteration: Any) -> None:
        report_iteration({"loss": 2.0})
        raise ValueError("the learning rate is [red]wrong[/red]\nsecond line")

    trainer = Trainer(strategy="shm", algorithm=broken, run_dir=folder)
    try:
        trainer.fit(is_even, [1])
    except ValueError:
        return folder
    raise AssertionError("the run did not fail")


def start_hanging_run(folder: Path) -> "subprocess.Popen[str]":
    """A process in the middle of a run."""
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def simulator_run(folder: Path, rewards: Sequence[float] = (1.0, 3.0, 2.0), *, status: Any = "succeeded") -> Path:
    """What the trainer of simulators leaves with a JsonlLogger."""
    logger = JsonlLogger(folder)
    logger.log_config({"max_iters": len(rewards), "seed": 1})
    for step, reward in enumerate(rewards, start=1):
        logger.log_metrics({"reward": reward / 2, "val/reward": reward}, step)
    if status is not None:
        logger.finish(status)
    return folder


def write_model(folder: Path, weights: bytes = b"weights") -> Path:
    """A folder that looks like a model of Hugging Face."""
    write_json(folder / "config.json", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return folder


def tuned_run(folder: Path) -> Path:
    """What fine-tuning leaves: the model itself, checkpoints beside it, and records."""
    write_model(folder, b"the end")
    write_json(folder / "settings.json", {"algorithm": "sft", "model_name": "smol", "learning_rate": 1e-4})
    lines = [{"step": 0, "time": 100.0, "config": {}}]
    lines += [{"step": step, "time": 100.0 + step, "loss": 1 / step, "val/loss": abs(step - 2)} for step in (1, 2, 3)]
    write_lines(folder / "metrics.jsonl", [*lines, {"step": 3, "time": 104.0, "status": "succeeded"}])
    for step in (2, 3):
        write_model(folder / f"checkpoint-{step}", f"step {step}".encode())
        (folder / f"checkpoint-{step}" / "training_state.safetensors").write_bytes(b"state")
    result = {"output_dir": str(folder), "steps": 3, "seconds": 4.5, "final_metrics": {"loss": 0.25, "val/loss": 1.0}}
    write_json(folder / "result.json", result)
    return folder
