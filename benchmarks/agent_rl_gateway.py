"""The cost of agents: the same training job with the engine called directly, and with agents over HTTP.

    python benchmarks/agent_rl.py --through-gateway
    python benchmarks/agent_rl_gateway.py --device cpu --shape tiny --completions 64 --new-tokens 16     # to try it

The agents' side is the whole stack: runner processes, SQLite store, gateway, the engine's server. Direct means the
policy's four verbs in one process, with the same prompts, the same number of tokens, and the same update. One JSON line
per figure; seconds are medians over the steps after the first four, in which kernels are compiled and steps recorded.
Every runner has an equal share of the agents.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from finetuning_models import rows, write_model

WARM_UP = 4
_clients: dict[Any, Any] = {}


async def say_something(task: dict[str, Any], llm: Any) -> float:
    """An agent of one call whose answers all have the same length. Half of the answers are right."""
    import httpx

    loop = asyncio.get_running_loop()
    client = _clients.get(loop)
    if client is None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        client = _clients[loop] = httpx.AsyncClient(timeout=600, limits=limits, verify=False)
    body = {"model": llm.model, "messages": task["prompt"], "max_tokens": task["new_tokens"], "ignore_eos": True}
    answer = await client.post(f"{llm.endpoint}/chat/completions", json=body)
    answer.raise_for_status()
    return float(len(answer.json()["choices"][0]["message"]["content"]) % 2)


def through_gateway(model: str, options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """The metrics of each step of a run with agents."""
    from sharpen import GRPO, LitAgentRunner, Trainer, llm_rollout

    prompts = tasks(options)
    algorithm = GRPO(
        model,
        group_size=options.group,
        batch_size=len(prompts),
        epochs=options.steps,
        learning_rate=1e-5,
        max_response_length=options.new_tokens,
        config={
            "actor_rollout_ref.model.enable_gradient_checkpointing": False,
            "actor_rollout_ref.rollout.max_num_seqs": options.completions,
            "trainer.max_actor_ckpt_to_keep": 1,
        },
    )
    runner: LitAgentRunner[Any] = LitAgentRunner(concurrency=-(-options.completions // options.runners))
    trainer = Trainer(algorithm=algorithm, runner=runner, n_runners=options.runners, run_dir=folder / "run")
    agent = llm_rollout(say_something)
    trainer.fit(agent, prompts)
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return [each for each in lines if "train/seconds/step" in each]


def direct(model: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """Seconds of each step with the policy's verbs."""
    from sharpen.llm.engine import SamplingParams
    from sharpen.llm.policy.policy import LocalPolicy
    from sharpen.llm.policy.samples import TrainingSample
    from sharpen.llm.policy.settings import LossSettings

    policy = LocalPolicy(
        model,
        trainable="all",
        gradient_checkpointing=False,
        learning_rate=1e-5,
        micro_batch_size=None,  # as the run with agents does it: the device decides how many tokens go together
        engine_options={"max_batch": options.completions},
    )
    prompts = [
        policy.tokenizer.apply_chat_template(each["prompt"], add_generation_prompt=True, return_dict=False)
        for each in tasks(options)
    ]
    params = SamplingParams(max_new_tokens=options.new_tokens, ignore_eos=True, n=options.group)
    found = []
    for _ in range(options.steps):
        began = time.perf_counter()
        generations = policy.sample(prompts, params)
        sampled = time.perf_counter()
        samples = []
        for generation in generations:
            for each in generation.samples:
                count, own = len(generation.prompt_ids), len(each.token_ids)
                sign = 1.0 if each.index % 2 else -1.0
                samples.append(
                    TrainingSample(
                        token_ids=[*generation.prompt_ids, *each.token_ids],
                        loss_mask=[False] * count + [True] * own,
                        advantages=[0.0] * count + [sign] * own,
                        old_logprobs=[0.0] * count + each.logprobs,
                    )
                )
        policy.forward_backward(samples, LossSettings(is_on_policy=True))
        policy.optim_step()
        ended = time.perf_counter()
        found.append({"step": ended - began, "rollouts": sampled - began, "train": ended - sampled})
    return found


def tasks(options: argparse.Namespace) -> list[dict[str, Any]]:
    prompts = rows(options.completions // options.group, prompt_words=options.prompt_words, completion_words=0)
    return [{**each, "new_tokens": options.new_tokens} for each in prompts]


def median(values: list[float]) -> float:
    return statistics.median(values[WARM_UP:] or values)


def compare(model: str, options: argparse.Namespace, folder: Path) -> None:
    own = direct(model, options)
    release(options.device)
    agents = through_gateway(model, options, folder)
    named = {name: median([each[name] for each in own]) for name in ("step", "rollouts", "train")}
    theirs = {name: median([each[f"train/seconds/{name}"] for each in agents]) for name in named}
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(
        {
            "bench": "agent_rl_through_gateway",
            "device": options.device,
            "shape": options.shape,
            "completions": options.completions,
            "new_tokens": options.new_tokens,
            "runners": options.runners,
            "direct_seconds": rounded(named),
            "through_gateway_seconds": rounded(theirs),
            "more_percent": round(100 * (theirs["step"] / named["step"] - 1), 1),
            "all_steps_seconds": [round(each["train/seconds/step"], 3) for each in agents],
            "cpu_seconds_of_children": round(children.ru_utime + children.ru_stime, 2),
            "steps": options.steps,
        }
    )


def release(device: str) -> None:
    import gc

    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    found.add_argument("--shape", default="1.07B", choices=["tiny", "135M", "1.07B"])
    found.add_argument("--completions", type=int, default=256)
    found.add_argument("--group", type=int, default=8)
    found.add_argument("--new-tokens", type=int, default=256)
    found.add_argument("--prompt-words", type=int, default=38)
    found.add_argument("--steps", type=int, default=10)
    found.add_argument("--runners", type=int, default=os.cpu_count() or 2)
    return found


def main() -> None:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        kind = "bfloat16" if options.device == "cuda" else "float32"
        model = write_model(options.shape, folder / options.shape, device=options.device, dtype=kind)
        compare(str(model), options, folder)


if __name__ == "__main__":
    main()
