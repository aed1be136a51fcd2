"""Rollouts for the pages, with plain and with hostile traces in them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharpen.runs import RunFolder
from sharpen.store import LightningStore
from sharpen.types import LLM, PromptTemplate, RolloutConfig, Span, TraceStatus

from .made_runs import config

START = 1_794_700_000.0
EVIL = (
    "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\"> "
    "[link](javascript:alert(1)) \x1b[31mred\x1b[0m \u202eturned \x00 zero\u200bwidth"
)
KEY = "sk-very-secret"


def make_folder(root: Path) -> Path:
    """The folder of a run called `lab`, with its configuration alone."""
    folder = RunFolder.create(run_dir=root / "lab")
    folder.write_config(config("APO", "calculator", 1))
    folder.release()
    return folder.path


def call_attributes(question: str, answer: str, *, tool: str | None = None, tokens: int = 0) -> dict[str, Any]:
    """The attributes of one LLM call, as the gateway writes them."""
    parts: list[dict[str, Any]] = [{"type": "text", "content": answer}]
    if tool:
        parts.append({"type": "tool_call", "id": "call-1", "name": tool, "arguments": {"query": question}})
    found: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small-model",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": question}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": parts, "finish_reason": "stop"}]),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": max(tokens, 1),
    }
    if tokens:
        found["sharpen.llm.response_token_ids"] = list(range(100, 100 + tokens))
        found["sharpen.llm.response_logprobs"] = [-0.5 * (number % 8) for number in range(tokens)]
        found["sharpen.llm.weights_version"] = "7"
    return found


async def add_rollout(
    store: LightningStore,
    rollout_id: str,
    task: Any,
    spans: list[tuple[str, Mapping[str, Any]]] | None = None,
    *,
    reward: float | None = None,
    status: str = "succeeded",
    metadata: dict[str, Any] | None = None,
    **given: Any,
) -> str:
    """A finished rollout with spans of a second each, one after the other; the id of its attempt."""
    started = await store.start_rollout(task, mode="train", rollout_id=rollout_id, worker_id="runner-0", **given)
    attempt_id = started.attempt.attempt_id
    made = [
        Span.from_attributes(
            attributes=dict(attributes),
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=number + 1,
            name=name,
            span_id=f"span-{number}",
            trace_id="1" * 32,
            start_time=START + number,
            end_time=START + number + 1,
            status=TraceStatus("ERROR", EVIL) if name.startswith("failing") else None,
        )
        for number, (name, attributes) in enumerate(spans or [])
    ]
    await store.complete_attempt(
        rollout_id,
        attempt_id,
        spans=made,
        status=status,
        reward=reward,
        metadata=metadata or {},  # type: ignore[arg-type]
    )
    return attempt_id


async def add_group(store: LightningStore) -> None:
    """Two versions of resources, and three rollouts of one task with the rewards 0, 0 and 1."""
    llm = LLM(f"https://me:{KEY}@models.example/v1?api_key={KEY}", "m", "env:KEY", {"headers": {"Authorization": KEY}})
    await store.add_resources({"prompt": PromptTemplate("Be brief.\n{question}"), "llm": llm}, "kit")
    await store.update_resources("kit", {"prompt": PromptTemplate("Be very brief.\n{question}"), "llm": llm})
    for number, reward in enumerate((0.0, 0.0, 1.0)):
        call = call_attributes("What is 2 + 2?", f"answer {number}", tool="calculator", tokens=5 + number)
        await add_rollout(
            store,
            f"member-{number}",
            {"question": "What is 2 + 2?"},
            [("sharpen.llm_call", call), ("sharpen.reward", {"sharpen.reward.0.value": reward})],
            reward=reward,
            config=RolloutConfig(max_attempts=2),
        )


async def add_hostile(store: LightningStore) -> None:
    """A rollout in which everything that an agent can write is hostile."""
    deep: Any = "bottom"
    for _ in range(300):
        deep = [deep]
    spans = [
        ("sharpen.llm_call", call_attributes(EVIL, EVIL, tool="</pre><script>x</script>")),
        (EVIL, {"deep": json.dumps(deep), "huge": "y" * 300_000, "<b>": EVIL, "flag": True, "numbers": [1.5, 2.5]}),
        ("failing", {"exception.message": EVIL}),
    ]
    await add_rollout(store, "hostile", EVIL, spans, reward=0.5, metadata={"error": EVIL})
