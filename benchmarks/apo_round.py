"""One round of APO with slow rollouts, of ours or of the peer. Prints one JSON line.

python benchmarks/apo_round.py --at-a-time 8 --package sharpen|agentlightning

Rollouts wait for 0.5 to 2 seconds, critic and editor, which answer over HTTP, for 0.3 to 1. How long a rollout waits
and what its reward is follow from its prompt and its task alone. The clock runs from the first training rollout of the
round to the last thing that was waited for; the seed is validated before it, while runners start.
"""

import argparse
import asyncio
import importlib
import itertools
import json
import logging
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

logging.disable(logging.WARNING)
os.environ.setdefault("SHARPEN_RUNS", tempfile.mkdtemp(prefix="sharpen-bench-"))

Interval = tuple[float, float]
CRITIC, EDITOR = "critic", "editor"
SEED = "Answer {question}."
TRAIN = [{"split": "train", "number": number} for number in range(64)]
VAL = [{"split": "val", "number": number} for number in range(32)]
numbers = itertools.count(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--package", default="sharpen")
    parser.add_argument("--at-a-time", type=int, default=8, help="rollouts that run side by side")
    parser.add_argument("--beam-width", type=int, default=4)
    parser.add_argument("--branch-factor", type=int, default=4)
    return parser.parse_args()


ARGUMENTS = parse()
IS_OURS = ARGUMENTS.package == "sharpen"
package: Any = importlib.import_module(ARGUMENTS.package)
APO: Any = importlib.import_module(f"{ARGUMENTS.package}.algorithm.apo").APO


# -- what is slow --------------------------------------------------------------------------------------

# Agents may run in other processes: what they did goes into a file. The monotonic clock is the same in all.
NOTES = os.environ.setdefault("APO_ROUND_NOTES", os.path.join(tempfile.gettempdir(), f"apo-round-{os.getpid()}.jsonl"))
branches: list[tuple[list[str], str, Interval]] = []  # ids of its training rollouts, the new prompt, when it was made


class SlowAgent(package.LitAgent):  # type: ignore[misc]
    async def rollout_async(self, task: dict[str, Any], resources: Any, rollout: Any) -> float:
        prompt = next(iter(resources.values())).template
        begin = time.monotonic()
        await asyncio.sleep(random.Random(f"{prompt} {task}").uniform(0.5, 2))
        note = {"id": rollout.rollout_id, "prompt": prompt, "split": task["split"], "when": [begin, time.monotonic()]}
        with open(NOTES, "a", encoding="utf-8") as notes:  # noqa: ASYNC230 - one short line
            notes.write(json.dumps(note) + "\n")
        return reward(prompt, task)


def reward(prompt: str, task: dict[str, Any]) -> float:
    """1 where the prompt is good enough for the task, with some noise."""
    skill = random.Random(prompt).uniform(0.2, 0.8)
    noise = random.Random(f"{task} {prompt}").gauss(0, 0.1)
    return float(skill + noise > random.Random(f"{task}").random())


class Critic(BaseHTTPRequestHandler):
    """Critic and editor in one; every edit is a new prompt."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = next(numbers)
        time.sleep(random.Random(number).uniform(0.3, 1))
        text = f"Point {number} is missing." if request["model"] == CRITIC else f"Answer {{question}}, way {number}."
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        about = {"id": f"{number}", "object": "chat.completion", "created": 1, "model": request["model"]}
        body = json.dumps({**about, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing to the screen."""


class TimedAPO(APO):  # type: ignore[misc]
    """Notes which rollouts a branch began with, what it came to, and how long critic and editor took."""

    async def textual_gradient_and_apply_edit(self, current_prompt: Any, rollout: Any, **more: Any) -> str | None:
        begin = time.monotonic()
        text: str | None = await super().textual_gradient_and_apply_edit(current_prompt, rollout, **more)
        ids = [rollout_id(each["spans"][0]) for each in rollout if each["spans"]]
        branches.append((ids, text or "", (begin, time.monotonic())))
        return text


def rollout_id(span: Any) -> str:
    return str(span["rollout_id"] if isinstance(span, dict) else span.rollout_id)


# -- the run -------------------------------------------------------------------------------------------


def run(base_url: str) -> None:
    from openai import AsyncOpenAI

    algorithm = TimedAPO(
        AsyncOpenAI(base_url=base_url, api_key="none"),
        gradient_model=CRITIC,
        apply_edit_model=EDITOR,
        beam_width=ARGUMENTS.beam_width,
        branch_factor=ARGUMENTS.branch_factor,
        beam_rounds=1,
    )
    template = package.PromptTemplate(template=SEED, engine="f-string")
    shared = {"algorithm": algorithm, "initial_resources": {"prompt_template": template}}
    package.Trainer(**shared, **side_by_side()).fit(SlowAgent(), train_dataset=TRAIN, val_dataset=VAL)


def side_by_side() -> dict[str, Any]:
    """As many rollouts at a time as were asked for: of one runner with us, one per runner with the peer."""
    if IS_OURS:
        runner = {"type": "LitAgentRunner", "concurrency": ARGUMENTS.at_a_time}
        return {"strategy": "shm", "store": "memory", "runner": runner}
    path = f"{package.LitAgentRunner.__module__}.LitAgentRunner"
    # Its tracer is one for a process, so that several runners must be as many processes.
    return {
        "strategy": {"type": "cs", "n_runners": ARGUMENTS.at_a_time, "server_port": 47592, "server_host": "127.0.0.1"},
        "n_runners": ARGUMENTS.at_a_time,
        "tracer": package.OtelTracer(),
        "adapter": package.TraceToMessages(),
        "runner": {"type": path, "poll_interval": 0.05, "interval_jitter": 0.0},
    }


def serve() -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Critic)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


# -- what came of it -----------------------------------------------------------------------------------


def figures() -> dict[str, Any]:
    with open(NOTES, encoding="utf-8") as notes:
        lines = [json.loads(line) for line in notes]
    rollouts = [{**line, "when": tuple(line["when"])} for line in lines]
    begin = min(each["when"][0] for each in rollouts if each["split"] == "train")
    inside = [each for each in rollouts if each["when"][0] >= begin]
    intervals = [each["when"] for each in inside] + [when for _, _, when in branches]
    return {
        "round_seconds": round(max(end for _, end in intervals) - begin, 2),
        "slowest_branch_seconds": round(max(branch_seconds(branch, rollouts) for branch in branches), 2),
        "sum_of_all_seconds": round(sum(end - start for start, end in intervals), 1),
        "rollouts": len(inside),
        "training_rollouts": sum(each["split"] == "train" for each in inside),
        "calls": next(numbers) - 1,
        "candidates": len(branches),
    }


def branch_seconds(branch: tuple[list[str], str, Interval], rollouts: list[dict[str, Any]]) -> float:
    """How long something of this branch was under way: its rollouts, critique, edit, and evaluation."""
    ids, text, made = branch
    training = [each["when"] for each in rollouts if each["id"] in ids]
    evaluation = [each["when"] for each in rollouts if each["prompt"] == text and each["split"] == "val"]
    return covered([*training, made, *evaluation])


def covered(intervals: Iterable[Interval]) -> float:
    """The time that lies in any of them."""
    total, reached = 0.0, 0.0
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def main() -> None:
    server = serve()
    try:
        run(f"http://127.0.0.1:{server.server_address[1]}/v1")
        print(json.dumps(figures()), flush=True)
    finally:
        Path(NOTES).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
