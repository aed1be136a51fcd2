"""A help desk: an agent with tools asks a scripted model through the gateway, under prompts that become better.

    python -m tests.dashboard.browser.programs.support_desk FOLDER

The model is a small server that speaks OpenAI's protocol and gives tokens with log-probabilities. It looks orders up
before it acts only where its prompt says so. One order does not exist, so that its rollouts fail; one is in a warehouse
that does not answer at the first attempt.
"""

import json
import math
import re
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from openai import OpenAI

from sharpen import Algorithm, LLMProxy, PromptTemplate, ProxyLLM, Trainer, emit_reward, operation, rollout
from sharpen.types import AttemptedRollout, NamedResources

ORDERS = {
    4711: {"item": "desk lamp", "state": "sent", "carrier": "post, arrives on Tuesday"},
    4712: {"item": "kettle", "state": "delivered", "carrier": "courier, signed by a neighbour"},
    4713: {"item": "bookshelf", "state": "delivered", "carrier": "freight"},
    4714: {"item": "office chair", "state": "in the warehouse", "carrier": "not yet chosen"},
}
TASKS: list[dict[str, Any]] = [
    {"question": "Where is my order 4711?", "order": 4711, "wants": "state"},
    {"question": "Has the kettle of order 4712 been delivered? Nobody rang.", "order": 4712, "wants": "state"},
    {"question": "The bookshelf of order 4713 came broken. I want my money back.", "order": 4713, "wants": "refund"},
    {"question": "When do you send my office chair, order 4714?", "order": 4714, "wants": "state"},
]
UNKNOWN: dict[str, Any] = {"question": "What about order 9999?", "order": 9999, "wants": "state"}
SEED = "You work at a help desk. Answer the customer.\n\n{question}"
CAREFUL = "You work at a help desk. Look the order up before you answer.\n\n{question}"
BEST = (
    "You work at a help desk. Look the order up before you answer.\n"
    "Refund only what was delivered, and say what was refunded.\n\n{question}"
)
ORDER = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": words, "parameters": ORDER}}
    for name, words in (("find_order", "What is known of an order."), ("refund_order", "Give the money back."))
]


# -- the agent ---------------------------------------------------------------------------------------


@operation
def find_order(order: int) -> dict[str, Any]:
    if order not in ORDERS:
        raise KeyError(f"there is no order {order}")
    return ORDERS[order]


@operation
def refund_order(order: int) -> dict[str, Any]:
    return {"order": order, "refunded": ORDERS[order]["item"]}


USE = {"find_order": find_order, "refund_order": refund_order}


@rollout
def desk(task: dict[str, Any], resources: NamedResources, rollout: AttemptedRollout) -> None:
    """Each turn has a reward: a tool that helps, and at the end an answer that names what was asked for."""
    template, gateway = resources["prompt"], resources["main_llm"]
    assert isinstance(template, PromptTemplate)
    assert isinstance(gateway, ProxyLLM)
    if task["order"] == 4714 and rollout.attempt.sequence_id == 1:
        raise ConnectionError("the warehouse does not answer")
    talk: list[Any] = [{"role": "user", "content": template.format(question=task["question"])}]
    llm = gateway.with_attempted_rollout(rollout)
    with OpenAI(base_url=llm.endpoint, api_key="none", max_retries=0) as client:
        while (said := _ask(client, llm.model, talk)).tool_calls:
            talk.append(said)
            for call in said.tool_calls:
                result = USE[call.function.name](**json.loads(call.function.arguments))
                emit_reward(0.2 if call.function.name == "find_order" else 0.4)
                talk.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    emit_reward(_score(task, str(said.content)))


def _ask(client: OpenAI, model: str, talk: list[Any]) -> Any:
    return client.chat.completions.create(model=model, messages=talk, tools=TOOLS).choices[0].message


def _score(task: dict[str, Any], answer: str) -> float:
    order = ORDERS[task["order"]]
    wanted = "refunded" if task["wants"] == "refund" else order["state"]
    return 1.0 if wanted in answer else 0.5 * (order["item"] in answer)


# -- the algorithm -----------------------------------------------------------------------------------


class Rounds(Algorithm[Any]):
    """Tries prompts one after the other, each on all tasks several times, and publishes each as a new version."""

    def __init__(self, prompts: Sequence[str], *, samples: int = 2) -> None:
        self.prompts, self.samples = list(prompts), samples

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        for number, text in enumerate(self.prompts, 1):
            kit = {**(self.get_initial_resources() or {}), "prompt": PromptTemplate(text)}
            await (store.update_resources("desk", kit) if number > 1 else store.add_resources(kit, "desk"))
            scores = {}
            for mode, tasks in (("train", train_dataset), ("val", val_dataset)):
                asked = [
                    await store.enqueue_rollout(
                        task, mode=mode, resources_id="desk", metadata={"group": f"round {number}, task {place}"}
                    )
                    for place, task in enumerate(tasks or [])
                    for _ in range(self.samples)
                ]
                done = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in asked])
                scores[mode] = sum(each.reward or 0.0 for each in done) / max(len(done), 1)
            self.report_iteration({"reward_mean": scores["train"]}, val_metrics={"reward_mean": scores["val"]})


# -- the model ---------------------------------------------------------------------------------------


def think(request: dict[str, Any]) -> tuple[str | None, tuple[str, int] | None]:
    """What it says, or the tool that it calls with an order."""
    talk = request["messages"]
    prompt, told = talk[0]["content"], [json.loads(each["content"]) for each in talk if each["role"] == "tool"]
    order = int(re.findall(r"\b\d{4}\b", prompt)[-1])
    if "Look the order up" in prompt and not told:
        return None, ("find_order", order)
    if "money back" in prompt and "Refund only" in prompt and not any("refunded" in each for each in told):
        return None, ("refund_order", order)
    if told and "refunded" in told[-1]:
        return f"I am sorry about that. The {told[-1]['refunded']} was refunded; you need not send it back.", None
    if told:
        return f"Your {told[-1]['item']} is {told[-1]['state']} ({told[-1]['carrier']}).", None
    return "Please have some patience, your order is surely on its way.", None


def tokens_of(text: str) -> list[dict[str, Any]]:
    """Words as tokens; how likely each was follows from the word."""
    pieces = re.findall(r"\s?\S+", text)
    return [{"token": each, "logprob": -((zlib.crc32(each.encode()) % 97) ** 2) / 2600} for each in pieces]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    text, call = think(request)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call is not None:
        function = {"name": call[0], "arguments": json.dumps({"order": call[1]})}
        message["tool_calls"] = [{"id": f"call_{call[0]}", "type": "function", "function": function}]
    tokens = tokens_of(text or json.dumps(call))
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
    choice |= {
        "logprobs": {"content": tokens},
        "token_ids": [zlib.crc32(each["token"].encode()) % 49152 for each in tokens],
    }
    assert all(math.isfinite(each["logprob"]) for each in tokens)
    usage = {"prompt_tokens": len(json.dumps(request["messages"])) // 4, "completion_tokens": len(tokens)}
    usage["total_tokens"] = sum(usage.values())
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": request["model"],
            "choices": [choice], "usage": usage}  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "desk-model", "object": "model", "owned_by": "vllm"}]})

    def do_POST(self) -> None:
        self._send(answer(json.loads(self.rfile.read(int(self.headers["content-length"])))))

    def _send(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing to the screen."""


@contextmanager
def desk_model() -> Iterator[str]:
    """The base URL of a running one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def run(folder: Path, prompts: Sequence[str], tasks: Sequence[dict[str, Any]], *, seed: int, samples: int = 2) -> None:
    with desk_model() as url:
        gateway = LLMProxy(
            model_list=[{"name": "desk-model", "base_url": url}],
            prices={"desk-model": (0.4, 1.6)},
            mode="record",
        )
        trainer = Trainer(
            algorithm=Rounds(prompts, samples=samples),
            llm_proxy=gateway,
            strategy="shm",
            n_runners=2,
            run_dir=folder,
            seed=seed,
            rollout_config={"max_attempts": 2, "retry_condition": ["failed"]},
        )
        trainer.fit(desk, list(tasks), TASKS)


def main(folder: Path) -> None:
    run(folder / "help-desk-plain", [SEED, CAREFUL, CAREFUL], TASKS, seed=1)
    run(folder / "help-desk", [SEED, CAREFUL, BEST], [*TASKS, UNKNOWN], seed=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
