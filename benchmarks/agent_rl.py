"""What a step of reinforcement learning of a language model costs, beside TRL with the same work; one JSON line each.

    python benchmarks/agent_rl.py                       # ours alone, on a GPU: a minute
    python benchmarks/agent_rl.py --peer                # and TRL's in the same run: five minutes
    python benchmarks/agent_rl.py --device cpu --peer   # SmolLM2-135M with LoRA, in CPU seconds
    python benchmarks/agent_rl.py --through-gateway     # agents over HTTP against the engine called directly
    python benchmarks/agent_rl.py --device cpu --jobs tiny:16 --new-tokens 8 --steps 3 --peer    # to try the script

Each side is a process of its own, for neither shall find the memory of the other. A last line for each job holds the
ratios and the goals. NOTES.md says what was measured where, and where the time goes.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent_rl_sides import add_options

FOLDER = Path(__file__).parent
# (shape, completions) -> how many times faster than TRL generation and the whole step are to be
GOALS: dict[tuple[str, int], dict[str, float]] = {
    ("1.07B", 256): {"generate": 7.0, "step": 4.0},
    ("1.07B", 64): {"step": 5.0},
    ("135M", 64): {"step": 15.0},
    ("smollm2", 8): {"step": 2.0},
}
MEMORY_GOAL = 0.5  # of the peer's, for the largest job

Figures = dict[str, Any]


def measured(side: str, options: argparse.Namespace) -> list[Figures]:
    """The lines of one side, printed as they come."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if options.device == "cpu":
        environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(FOLDER / "agent_rl_sides.py"), side, *arguments(options)]
    found: list[Figures] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            # TRL reports its steps on the same stream.
            if line.startswith('{"bench"'):
                print(line, end="", flush=True)
                found.append(json.loads(line))
    if process.returncode:
        print(json.dumps({"bench": "agent_rl", "side": side, "failed": process.returncode}), flush=True)
    return found


def arguments(options: argparse.Namespace) -> list[str]:
    given = ["--device", options.device, "--jobs", *options.jobs]
    for name in ("group", "new_tokens", "prompt_words", "steps", "token_budget"):
        value = getattr(options, name)
        given += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    given += [f"--{name}" for name in ("lora", "compiles") if getattr(options, name)]
    return given


def compare(ours: list[Figures], theirs: list[Figures]) -> None:
    """How many times faster each job is, and whether that is what it is to be."""
    by_job = {(each["shape"], each["completions"]): each for each in theirs}
    for mine in ours:
        job = mine["shape"], mine["completions"]
        peer = by_job.get(job)
        if peer is None:
            continue
        ratios = {name: round(peer["seconds"][name] / mine["seconds"][name], 2) for name in ("generate", "step")}
        goals = GOALS.get(job, {})
        memory = round(mine["peak_gb"] / peer["peak_gb"], 3)
        line = {
            "bench": "agent_rl_ratios",
            "shape": job[0],
            "completions": job[1],
            "times_faster": ratios,
            "goals": goals,
            "reached": {name: ratios[name] >= goal for name, goal in goals.items()},
            "memory_ratio": memory,
        }
        print(json.dumps(line | ({"memory_reached": memory <= MEMORY_GOAL} if job == ("1.07B", 256) else {})))


def through_gateway(options: argparse.Namespace) -> int:
    shape, _, completions = options.jobs[0].partition(":")
    steps = options.steps + 4  # with agents it takes longer until every step is recorded
    command = [
        sys.executable, str(FOLDER / "agent_rl_gateway.py"), "--device", options.device, "--shape", shape,
        "--completions", completions, "--group", str(options.group), "--new-tokens", str(options.new_tokens),
        "--prompt-words", str(options.prompt_words), "--steps", str(steps),
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--peer", action="store_true", help="measure TRL in the same run")
    found.add_argument("--through-gateway", action="store_true", help="agents over HTTP, with the first job alone")
    add_options(found)
    return found


def read_options() -> argparse.Namespace:
    found = parser()
    options = found.parse_args()
    if options.device == "cpu" and options.jobs == found.get_default("jobs"):
        # On a CPU the real small model, in the little that a CPU does in a minute.
        options.jobs, options.lora = ["smollm2:8"], True
        options.group, options.new_tokens, options.steps = 4, 32, 4
    elif options.token_budget is None and options.device == "cuda":
        options.token_budget = 22_528  # three micro-batches of the largest job, in half of the peer's memory
    return options


def main() -> int:
    options = read_options()
    if options.through_gateway:
        return through_gateway(options)
    ours = measured("sharpen", options)
    if options.peer:
        compare(ours, measured("trl", options))
    return 0 if ours else 1


if __name__ == "__main__":
    sys.exit(main())
