"""A small store with every kind of row, and a reader that returns all of it as plain data.

`fill` runs under the version that writes the fixture, `read` under every version: both use only the store's methods.
"""

from typing import Any

import msgspec

from sharpen import (
    LLM,
    AttemptedRollout,
    Event,
    LightningStore,
    Link,
    OtelResource,
    PromptTemplate,
    ProxyLLM,
    RolloutConfig,
    Span,
    SpanContext,
    TraceStatus,
    emitter,
    semconv,
)

Content = dict[str, Any]

RETRY = RolloutConfig(max_attempts=3, retry_condition=["failed", "timeout", "unresponsive"])
LEASED = RolloutConfig(
    timeout_seconds=3600, unresponsive_seconds=60, max_attempts=2, retry_condition=["unresponsive", "timeout"]
)
LONG_TEXT = "All work and no play makes a long context. " * 2000
"""Over 64 kB, so that a store keeps it once, by its hash."""
LEASED_ID = "ro-leased"
"""The rollout whose lease runs out between writing and reading."""
CLAIM_REQUEST, RESOURCES_REQUEST = "request-claim", "request-resources"
SEARCHES: dict[str, dict[str, Any]] = {
    "text": {"text": "größe"},
    "group": {"group": "g-1"},
    "same_input": {"same_input_as": "ro-plain"},
    "worker": {"worker_id": "w-2"},
    "reward": {"reward_min": 0.5, "order": "reward_high"},
    "finished": {"status_in": ["succeeded", "failed", "cancelled"], "order": "finished"},
    "val": {"mode": "val", "order": "oldest"},
    "resources": {"resources_id": "prompts", "resources_version": 2},
}


# -- writing -----------------------------------------------------------------------------------------


async def fill(store: LightningStore) -> None:
    """Write rollouts in every status, attempts that ended in every way, spans, resources and workers."""
    await _publish(store)
    await _succeed(store)
    await _retry(store)
    await _lose(store)
    await _leave_open(store)
    await store.update_worker("w-1", {"cpu": 0.5, "open": ["größe", 3]})
    await store.update_worker("w-idle", {"cpu": 0.0})


async def _publish(store: LightningStore) -> None:
    endpoint = LLM("http://127.0.0.1:1/v1", "small", "env:MODEL_KEY", {"temperature": 0.5, "stop": ["\n"]})
    await store.add_resources({"prompt": PromptTemplate("Solve {question}"), "llm": endpoint}, "prompts")
    await store.update_resources("prompts", {"prompt": PromptTemplate("Löse {{ question }}", "jinja")})
    await store.enqueue_rollout({"question": "bound to version 2"}, rollout_id="ro-bound", resources_id="prompts")
    claimed = await _claim(store, "w-1")
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=0.25)
    await store.add_resources({"main_llm": ProxyLLM("http://127.0.0.1:1/v1", "proxied")}, "models")
    await store.update_resources("prompts", {"prompt": PromptTemplate("Think. {question}")}, RESOURCES_REQUEST)


async def _succeed(store: LightningStore) -> None:
    tasks: list[tuple[str, Any]] = [
        ("ro-plain", {"question": "größe", "numbers": [1, 2.5, -3, 2**53], "nested": {"none": None, "yes": True}}),
        ("ro-text", "a text"),
        ("ro-none", None),
        ("ro-long", {"context": LONG_TEXT}),
        ("ro-again", {"question": "größe", "numbers": [1, 2.5, -3, 2**53], "nested": {"none": None, "yes": True}}),
    ]
    for number, (name, task) in enumerate(tasks):
        group = {"group": f"g-{number % 2}", "number": number}
        await store.enqueue_rollout(task, mode="train", rollout_id=name, metadata=group, resources_id="prompts")
        claimed = await _claim(store, f"w-{number % 3}")
        await store.add_many_spans(_spans(claimed))
        last = [_span(claimed, "last", {"long": LONG_TEXT, "number": number}), _reward(claimed, number / 4)]
        await store.complete_attempt(
            name, claimed.attempt.attempt_id, spans=last, reward=number / 4, metadata={"seconds": 0.5}
        )


def _spans(claimed: AttemptedRollout) -> list[Span]:
    """Spans with all that a span can have."""
    call = _span(
        claimed,
        semconv.SHARPEN_LLM_CALL,
        {
            "prompt_token_ids": [1, 2, 3],
            "logprobs": [-0.5, -1.25],
            "model": "small",
            "is_stream": False,
            "words": ["ü"],
        },
    )
    call = msgspec.structs.replace(
        call,
        events=[Event("retried", {"after": 1.5}, 1_700_000_000.25)],
        links=[Link(SpanContext("a" * 32, "b" * 16, True, {"vendor": "x"}), {"why": "cause"})],
        context=SpanContext(call.trace_id, call.span_id),
        parent=SpanContext(call.trace_id, "c" * 16),
        parent_id="c" * 16,
        resource=OtelResource({"service.name": "agent"}, "https://example.org/schema"),
    )
    failed = _span(claimed, "tool", {"name": "calculator"}, status=TraceStatus("ERROR", "division by zero"))
    message = _span(claimed, semconv.AGL_MESSAGE, {semconv.LightningSpanAttributes.MESSAGE_BODY.value: "said: größe"})
    return [call, failed, message, _reward(claimed, -1.0)]


async def _retry(store: LightningStore) -> None:
    """Three attempts, of which the last counts; a span that came late belongs to the first."""
    await store.enqueue_rollout({"question": "hard"}, mode="val", rollout_id="ro-retried", config=RETRY)
    attempts = []
    for number, status in enumerate(("failed", "timeout", "succeeded")):
        claimed = await _claim(store, f"w-{number}")
        attempts.append(claimed)
        await store.add_span(_span(claimed, "try", {"number": number}))
        await store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, status=status, metadata={"try": number}
        )
    await store.add_span(_span(attempts[0], "late", {}))


async def _lose(store: LightningStore) -> None:
    await store.enqueue_rollout({"question": "impossible"}, mode="test", rollout_id="ro-failed")
    claimed = await _claim(store, "w-1")
    error = {"error": {"type": "ValueError", "message": "no"}}
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed", metadata=error)
    await store.enqueue_rollout({"question": "unwanted"}, rollout_id="ro-cancelled")
    await store.enqueue_rollout({"question": "unwanted, begun"}, rollout_id="ro-cancelled-running")
    await store.cancel_rollouts(["ro-cancelled"])
    claimed = await _claim(store, "w-2")
    await store.add_span(_span(claimed, "begun", {}))
    await store.cancel_rollouts([claimed.rollout_id])


async def _leave_open(store: LightningStore) -> None:
    """What was under way: claimed, running, to be tried again, waiting."""
    for name, config in (("ro-preparing", None), ("ro-running", None), ("ro-started", None), (LEASED_ID, LEASED)):
        await store.enqueue_rollout({"question": name}, mode="train", rollout_id=name, config=config)
        claimed = await store.dequeue_rollout("w-2", request_id=f"{CLAIM_REQUEST}-{name}")
        assert claimed is not None
        if name != "ro-preparing":
            await store.add_span(_span(claimed, "begun", {}))
    await store.start_rollout({"question": "past the queue"}, worker_id="w-3", rollout_id="ro-past-queue")
    lost = []
    for name in ("ro-unresponsive", "ro-requeued"):
        await store.enqueue_rollout({"question": name}, rollout_id=name, config=RETRY)
        lost.append(await _claim(store, "w-1"))
        await store.add_many_spans([_span(lost[-1], "begun", {}), _reward(lost[-1], 0.125)])
    for claimed, status in zip(lost, ("unresponsive", "failed"), strict=True):
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
    for number in range(3):
        await store.enqueue_rollout(
            {"question": "waits", "number": number}, mode="val", rollout_id=f"ro-waits-{number}"
        )
    await store.update_rollout("ro-waits-1", metadata={"changed": True})


async def _claim(store: LightningStore, worker_id: str) -> AttemptedRollout:
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None
    return claimed


def _span(claimed: AttemptedRollout, name: str, attributes: dict[str, Any], **more: Any) -> Span:
    ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    return Span.from_attributes(attributes=attributes, name=name, **ids, **more)


def _reward(claimed: AttemptedRollout, value: float) -> Span:
    return _span(claimed, semconv.AGL_REWARD, {semconv.PRIMARY_REWARD_VALUE: value})


# -- reading -----------------------------------------------------------------------------------------


async def read(store: LightningStore) -> Content:
    """Everything that the store answers, as plain data."""
    rollouts = list(await store.query_rollouts())
    attempts = {each.rollout_id: list(await store.query_attempts(each.rollout_id)) for each in rollouts}
    spans = {each.rollout_id: list(await store.query_spans(each.rollout_id)) for each in rollouts}
    finished = await store.finished_rollouts()
    statistics: dict[str, Any] = dict(await store.statistics())
    content = {
        "rollouts": rollouts,
        "attempts": attempts,
        "spans": spans,
        "resources": await _all_resources(store),
        "latest_resources": await store.get_latest_resources(),
        "workers": list(await store.query_workers(sort_by="worker_id")),
        "queue": [each.rollout_id for each in await store.query_rollouts(status_in=["queuing", "requeuing"])],
        "finished": [each.rollout_id for each in finished.items],
        "finished_cursor": finished.cursor,
        "final_rewards": {name: emitter.find_final_reward(found) for name, found in spans.items()},
        "messages": {name: list(filter(None, map(emitter.get_message_value, found))) for name, found in spans.items()},
        "searches": {name: await _search(store, asked) for name, asked in SEARCHES.items()},
        "statistics": {name: statistics[name] for name in sorted(statistics) if _is_lasting(name)},
    }
    plain: Content = msgspec.json.decode(msgspec.json.encode(content))
    return plain


async def _all_resources(store: LightningStore) -> list[Any]:
    """Every version of every set; how many a listing has depends on the version of the package."""
    newest: dict[str, int] = {}
    for each in await store.query_resources():
        newest[each.resources_id] = max(each.version, newest.get(each.resources_id, 1))
    return [
        await store.get_resources_by_id(name, version)
        for name in sorted(newest)
        for version in range(1, newest[name] + 1)
    ]


async def _search(store: LightningStore, asked: dict[str, Any]) -> list[str]:
    page = await store.search_rollouts(**asked)
    return [each.rollout_id for each in page.items]


def _is_lasting(name: str) -> bool:
    return name not in ("name", "size_bytes", "uptime_seconds")
