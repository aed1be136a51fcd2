"""What our fine-tuning costs beside plain TRL with the same settings, one JSON line per figure.

    python benchmarks/finetuning.py                  # ours alone
    python benchmarks/finetuning.py --peer           # beside plain TRL, in turns: 15 minutes on a quiet core
    python benchmarks/finetuning.py --peer --quick   # a tiny model: does the benchmark work?
    python benchmarks/finetuning.py --device cuda --peer        # on a GPU, with random weights: two and a half minutes

Each run is a process of its own with one thread; the two sides take turns, ours first in one pair and second in the
next. A ratio is the median of the pairs' ratios of CPU seconds, with the least and the greatest of them. Both sides
train in float32 with the same model (SmolLM2-135M), rows, seed, batch, learning rate and logging, save nothing before
the end and the same at the end; their losses are compared step by step. `a step` is the training loop alone; `the whole
run` is everything that the process did, imports and saving included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from finetuning_pairs import compared

MEASURES = str(Path(__file__).parent / "finetuning_measures.py")
# One thread, and no hidden waiting of others: CPU seconds shall be work.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
# title, arguments
RUNS: list[tuple[str, list[str]]] = [
    ("SFT, LoRA", ["sft", "--lora", "--steps", "3"]),
    ("SFT, all weights", ["sft", "--steps", "3"]),
    ("GRPO, LoRA, 8 completions of 32 tokens", ["grpo", "--lora", "--steps", "2", "--batch", "1"]),
]
QUICK_STEPS = "12"
IMPORT_SECONDS = 0.05
# In a bare interpreter: what a script has imported before would not count.
IMPORT = """
import sys, time
before = time.process_time()
import {module}
seconds = time.process_time() - before
heavy = [name for name in ("torch", "transformers", "trl", "peft", "datasets", "numpy") if name in sys.modules]
import json
print(json.dumps({{"cpu_seconds": seconds, "loaded": heavy}}))
"""

Figures = dict[str, Any]


def measured(arguments: list[str]) -> Figures:
    """The figures of one process, and all the CPU seconds that it took."""
    command = [sys.executable, MEASURES, *arguments]
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env={**os.environ, **ENVIRONMENT})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # waited for here, so that its usage is known
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(arguments)} failed:\n{errors.read()[-3000:]}")
        figures: Figures = json.loads(output.read().splitlines()[-1])
    return figures | {"whole_seconds": usage.ru_utime + usage.ru_stime}


def compare(title: str, arguments: list[str], pairs: int, *, peer: bool) -> None:
    """The training loop, a step, and the whole run."""
    sides: dict[str, list[Figures]] = {"sharpen": [], "trl": []}
    for pair in range(pairs):
        for side in sides if pair % 2 == 0 else reversed(sides):
            if side == "sharpen" or peer:
                figures = measured([*arguments, "--package", side])
                figures["seconds"] = figures["loop_seconds"] / len(figures["step_seconds"])
                sides[side].append(figures)
                print(f"{title}, {side}: {figures['seconds']:.3f} CPU seconds a step", file=sys.stderr, flush=True)
    ours, theirs = sides["sharpen"], sides["trl"]
    for name, what in (("seconds", "CPU seconds a step"), ("whole_seconds", "CPU seconds of the whole run")):
        print(json.dumps(compared(f"{title}, {what}", ours, theirs, name)), flush=True)


def imported(module: str) -> Figures:
    command = [sys.executable, "-c", IMPORT.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **ENVIRONMENT})
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare_imports(rounds: int, *, peer: bool) -> None:
    ours = [imported("sharpen.llm") for _ in range(rounds)]
    median = statistics.median(run["cpu_seconds"] for run in ours)
    line: Figures = {
        "measure": "import sharpen.llm, CPU seconds",
        "ours": round(median, 4),
        "ours_all": [round(run["cpu_seconds"], 4) for run in ours],
        "heavy_packages_loaded": ours[0]["loaded"],
        "at_most": IMPORT_SECONDS,
        "reached": median <= IMPORT_SECONDS and not ours[0]["loaded"],
    }
    if peer:
        line["peer"] = round(imported("trl.trainer.sft_trainer")["cpu_seconds"], 3)
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="store_true", help="beside plain TRL")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", default="", help="measures whose title holds this text")
    parser.add_argument("--quick", action="store_true", help="a tiny model instead of SmolLM2-135M")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=140.0, help="with --device cuda: the time that there is")
    chosen = parser.parse_args()
    if chosen.device == "cuda":
        import finetuning_device

        shapes = ["tiny"] if chosen.quick else ["135M", "1.07B"]
        finetuning_device.run_all("cuda", shapes, chosen.seconds, peer=chosen.peer)
        return
    if chosen.only in "import":
        compare_imports(chosen.pairs, peer=chosen.peer)
    with tempfile.TemporaryDirectory(prefix="sharpen-bench-") as folder:
        for title, arguments in RUNS:
            if chosen.only in title:
                extra = quick_arguments(Path(folder)) if chosen.quick else []
                compare(title, [*arguments, *extra], chosen.pairs, peer=chosen.peer)


def quick_arguments(folder: Path) -> list[str]:
    if not any(folder.iterdir()):
        models = Path(__file__).parent / "finetuning_models.py"
        subprocess.run([sys.executable, models, "tiny", folder], check=True, capture_output=True)
    return ["--model", str(folder), "--steps", QUICK_STEPS]


if __name__ == "__main__":
    main()
