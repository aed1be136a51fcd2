"""Fine-tuning on a GPU: ours beside plain TRL, in turns in one process, with random weights; one JSON line per figure.

    python benchmarks/finetuning.py --device cuda --peer
    python benchmarks/finetuning_device.py --device cpu --shapes tiny --peer       # to try the script without a GPU

Time on such a machine is dear: what matters most comes first, each figure is printed as soon as it is there, and
nothing is begun that would not end within `--seconds`. Time is taken every few steps, when they are logged, with the
device idle; the steps up to the first log do not count. Runs end without saving.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from finetuning_measures import Work, measure
from finetuning_models import write_model
from finetuning_pairs import compared

SIDES = ("sharpen", "trl")
WARM_UP = "warm-up"
ERRORS = (RuntimeError, ValueError, TypeError, OSError, LookupError, AttributeError, AssertionError, ImportError)


@dataclass
class Bench:
    """The machine, the time that is left on it, and the models that were written so far."""

    device: Literal["cpu", "cuda"]
    folder: Path
    ends: float
    peer: bool
    models: dict[str, Path] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    """Seconds that a run took, by what it was."""

    def model(self, shape: str) -> str:
        if shape not in self.models:
            kind = "bfloat16" if self.device == "cuda" else "float32"
            self.models[shape] = write_model(shape, self.folder / shape, device=self.device, dtype=kind)
        return str(self.models[shape])

    def has_time(self, title: str, runs: int) -> bool:
        others = [seconds for name, seconds in self.slowest.items() if name != WARM_UP]
        expected = self.slowest.get(title, max(others, default=0.0))
        return time.monotonic() + runs * expected < self.ends

    def run(self, title: str, package: str, work: Work) -> dict[str, Any]:
        """One run, with the peak of the device's memory."""
        import torch

        began = time.monotonic()
        if self.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with redirect_stdout(sys.stderr):  # transformers prints its logs
            figures = measure(package, work)
        steps = figures["step_seconds"][1:]  # caches fill up to the first log
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.device == "cuda" else None
        self.slowest[title] = max(self.slowest.get(title, 0.0), time.monotonic() - began)
        return figures | {"seconds": statistics.median(steps), "peak_gib": None if peak is None else round(peak, 2)}


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def in_words(error: Exception) -> str:
    """What failed; where it did goes to standard error."""
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"[:600]


# -- speed -------------------------------------------------------------------------------------------


def compare(bench: Bench, title: str, work: Work, pairs: int) -> None:
    """Seconds of a step, in turns: ours first, then the other first."""
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    try:
        for pair in range(pairs):
            if not bench.has_time(title, 2 if bench.peer else 1):
                break
            for side in SIDES if pair % 2 == 0 else reversed(SIDES):
                if side == "sharpen" or bench.peer:
                    sides[side].append(bench.run(title, side, work))
    except ERRORS as error:
        say({"measure": title, "failed": in_words(error)})
        return
    if not sides["sharpen"]:
        say({"measure": title, "left_out": "no time was left"})
        return
    peaks = {f"{side}_peak_gib": max(run["peak_gib"] or 0 for run in runs) for side, runs in sides.items() if runs}
    say(compared(title, sides["sharpen"], sides["trl"], "seconds") | peaks)


# -- memory ------------------------------------------------------------------------------------------


def memory(bench: Bench, package: str, shape: str, work: Work) -> None:
    """The peak of memory with and without LoRA, with and without gradient checkpointing."""
    title = f"memory, {shape}, {package}"
    for lora, checkpointing in ((True, True), (False, True), (False, False), (True, False)):
        what = f"{'LoRA' if lora else 'all weights'}, gradient checkpointing {'on' if checkpointing else 'off'}"
        line: dict[str, Any] = {"measure": f"peak memory, SFT, {shape}, {what}", "package": package}
        if not bench.has_time(title, 1):
            say(line | {"left_out": "no time was left"})
            continue
        try:
            run = bench.run(title, package, replace(work, lora=lora, checkpointing=checkpointing))
        except ERRORS as error:
            say(line | {"failed": in_words(error)})
            continue
        say(line | {"peak_gib": run["peak_gib"], "step_seconds": round(run["seconds"], 4), "losses": run["reported"]})


# -- all of it ---------------------------------------------------------------------------------------


def run_all(device: Literal["cpu", "cuda"], shapes: list[str], seconds: float, *, peer: bool) -> None:
    began = time.monotonic()
    import torch
    import trl

    say(
        {
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "torch": torch.__version__,
            "trl": trl.__version__,
            "import_seconds": round(time.monotonic() - began, 1),
        }
    )
    with tempfile.TemporaryDirectory(prefix="sharpen-bench-", ignore_cleanup_errors=True) as folder:
        measures(Bench(device, Path(folder), began + seconds, peer), shapes[0], shapes[-1])
    say({"measure": "the whole of this, seconds", "seconds": round(time.monotonic() - began, 1)})


def measures(bench: Bench, small: str, large: str) -> None:
    precision: Literal["bf16", "fp32"] = "bf16" if bench.device == "cuda" else "fp32"
    sft = Work(
        *("sft", bench.model(small)),
        steps=12,
        logging_steps=4,
        batch=8,
        prompt_words=64,
        completion_words=180,
        precision=precision,
        device=bench.device,
        saves=False,
    )
    grpo = replace(sft, algorithm="grpo", lora=True, steps=4, logging_steps=2, prompt_words=36)
    warm_up(bench, replace(sft, steps=2, logging_steps=1))
    compare(bench, f"SFT, LoRA, {small}, batch of 8 x 250 tokens, seconds a step", replace(sft, lora=True), pairs=5)
    big = replace(sft, model=bench.model(large))
    compare(bench, f"SFT, LoRA, {large}, batch of 8 x 250 tokens, seconds a step", replace(big, lora=True), pairs=3)
    memory(bench, "sharpen", large, replace(big, steps=4, logging_steps=2))
    compare(bench, f"GRPO, LoRA, {small}, 64 completions of 32 tokens, seconds a step", grpo, pairs=3)
    if bench.peer:
        memory(bench, "trl", large, replace(big, steps=4, logging_steps=2))
    big_grpo = replace(grpo, model=big.model)
    compare(bench, f"GRPO, LoRA, {large}, 64 completions of 32 tokens, seconds a step", big_grpo, pairs=3)
    compare(bench, f"SFT, all weights, {small}, batch of 8 x 250 tokens, seconds a step", sft, pairs=3)


def warm_up(bench: Bench, work: Work) -> None:
    for side in SIDES:
        if side == "sharpen" or bench.peer:
            try:
                bench.run(WARM_UP, side, work)
            except ERRORS as error:
                say({"measure": WARM_UP, "package": side, "failed": in_words(error)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--shapes", nargs="+", default=["135M", "1.07B"], help="a small model and a large one")
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--peer", action="store_true", help="beside plain TRL")
    chosen = parser.parse_args()
    run_all(chosen.device, chosen.shapes, chosen.seconds, peer=chosen.peer)


if __name__ == "__main__":
    main()
