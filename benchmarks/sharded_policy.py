"""A policy whole and in parts: the same losses, and what each takes in memory and time. Prints a table.

    python benchmarks/sharded_policy.py --device cuda
    python benchmarks/sharded_policy.py --device cpu --shape tiny          # to try the script without a GPU

Weights are random, and each way runs in a process of its own. A step is `forward_backward` and `optim_step` over the
same sequences; the first two steps do not count. Memory is what torch has given out on the device of rank 0: between
two steps, and at most within one. At last each samples greedily, with the weights that it has learned. Two ranks that
share one GPU talk by Gloo over loopback, which tells whether it works, and nothing of the speed of two GPUs.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from finetuning_models import tokenizer

# layers, width, width of the feed-forward part, heads, heads of keys and values, tokens
SHAPES = {
    "tiny": (4, 64, 128, 4, 2, 1024),
    "0.5B": (24, 896, 4864, 14, 2, 151_936),
    "1.5B": (28, 1536, 8960, 12, 2, 151_936),
    "3B": (36, 2048, 11_008, 16, 2, 151_936),
}
WAYS = {
    "one process": {},
    "one process, again": {},
    "parts, 1 rank": {"ranks": 1},
    "parts, 1 rank, offloaded": {"ranks": 1, "offloads": True},
    "parts, 2 ranks on one device": {"ranks": 2},
    "copies, 2 ranks on one device": {"ranks": 2, "copies": True},
}
WARM_UP = 2


def write_model(folder: Path, shape: str, dtype: str) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    layers, width, inner, heads, kv_heads, vocab = SHAPES[shape]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
    )
    make: Any = Qwen2ForCausalLM  # its types are not complete
    make(config).to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer(1024).save_pretrained(folder)


def samples(policy: Any, count: int, length: int) -> list[Any]:
    from sharpen.llm.policy.samples import TrainingSample

    rng = random.Random(0)
    sequences = [[rng.randrange(1000) for _ in range(length)] for _ in range(count)]
    old = [each.tolist() for each in policy.logprobs(sequences)]
    mask = [place >= length // 2 for place in range(length)]
    return [
        TrainingSample(ids, mask, [rng.choice((-1.0, 1.0))] * length, logprobs)
        for ids, logprobs in zip(sequences, old, strict=True)
    ]


def make_policy(model: str, args: argparse.Namespace, way: dict[str, Any]) -> Any:
    from sharpen.llm.policy.policy import LocalPolicy
    from sharpen.llm.policy.ranks.ranked_policy import RankedPolicy
    from sharpen.llm.policy.ranks.sharded_policy import ShardedPolicy
    from sharpen.llm.policy.ranks.sharding import Sharding

    options: Any = {"learning_rate": 1e-5, "micro_batch_size": None, "token_budget": 8192, "precision": args.precision}
    devices = [f"{args.device}:0" if args.device == "cuda" else args.device] * way.get("ranks", 0)
    if not devices:
        return LocalPolicy(model, device=args.device, **options)
    if way.get("copies"):
        return RankedPolicy(model, devices=devices, **options)
    return ShardedPolicy(model, devices=devices, sharding=Sharding(offloads=way.get("offloads", False)), **options)


def measure(model: str, way: str, args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from sharpen.llm.policy.settings import LossSettings

    policy = make_policy(model, args, WAYS[way])
    batch, is_gpu = samples(policy, args.sequences, args.length), args.device == "cuda"
    found: dict[str, Any] = {"way": way, "losses": [], "norms": [], "seconds": []}
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP + args.steps):
        if is_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        metrics = policy.forward_backward(batch, LossSettings())
        metrics |= policy.optim_step()
        if is_gpu:
            torch.cuda.synchronize()
        found["seconds"].append(time.perf_counter() - began)
        found["losses"].append(metrics["loss"])
        found["norms"].append(metrics["grad_norm"])
    found["resting"] = torch.cuda.memory_allocated() if is_gpu else 0
    found["peak"] = torch.cuda.max_memory_allocated() if is_gpu else 0
    found["tokens"] = sampled(policy)
    policy.close()
    return found


def sampled(policy: Any) -> list[list[int]]:
    from sharpen.llm.engine import SamplingParams

    prompts = [[7 * number + place for place in range(32)] for number in range(4)]
    answers = policy.sample(prompts, SamplingParams(max_new_tokens=16, temperature=0.0))
    return [each.samples[0].token_ids for each in answers]


def row(found: dict[str, Any], first: dict[str, Any]) -> str:
    """One line of the table; losses and norms as the greatest distance to those of one process."""
    loss = max(abs(a - b) for a, b in zip(found["losses"], first["losses"], strict=False))
    norms = [(a, b) for a, b in zip(found["norms"], first["norms"], strict=False) if b]  # 0 where all is clipped
    norm = max(abs(a - b) / b for a, b in norms)
    seconds = found["seconds"][WARM_UP:]
    spread = f"{statistics.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})"
    memory = f"{found['resting'] / 2**30:.2f} | {found['peak'] / 2**30:.2f}"
    pairs = [pair for each in zip(found["tokens"], first["tokens"], strict=True) for pair in zip(*each, strict=False)]
    same = f"{sum(a == b for a, b in pairs)} of {len(pairs)}"
    return f"| {found['way']} | {loss:.2g} | {100 * norm:.2g} % | {same} | {memory} | {spread} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--shape", default="0.5B", choices=sorted(SHAPES))
    parser.add_argument("--precision", default="auto", choices=("auto", "bf16", "fp32"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=300, help="nothing is begun after so long")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        model, way = args.one
        print(json.dumps(measure(model, way, args)))
        return
    run_all(args)


def run_all(args: argparse.Namespace) -> None:
    ends = time.monotonic() + args.seconds
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), args.shape, "bfloat16" if args.device == "cuda" else "float32")
        for way in args.ways:
            left = ends - time.monotonic()
            if left > 0 and (found := run_one(args, folder, way, left)) is not None:
                lines.append(found)
                print(json.dumps(found), flush=True)
    print("| way | loss off by | norm off by | same tokens | GiB between steps | GiB at most | seconds a step |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for found in lines:
        print(row(found, lines[0]))


def run_one(args: argparse.Namespace, folder: str, way: str, seconds: float) -> dict[str, Any] | None:
    """What a process of its own found; None, with its last words, where it failed."""
    sizes = [
        "--precision",
        args.precision,
        "--steps",
        str(args.steps),
        "--sequences",
        str(args.sequences),
        "--length",
        str(args.length),
    ]
    command = [sys.executable, __file__, "--device", args.device, *sizes, "--one", folder, way]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{way}: {error}\n{str(error.stderr)[-3000:]}", flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
