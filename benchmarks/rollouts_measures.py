"""The single measures of `rollouts.py`. Each prints one JSON line; run it by itself to profile it.

python benchmarks/rollouts_measures.py rate --strategy shm --runners 1 --package sharpen|agentlightning
"""

import argparse
import asyncio
import importlib
import json
import logging
import os
import resource
import statistics
import tempfile
import time
from typing import Any

logging.disable(logging.WARNING)
os.environ.setdefault("SHARPEN_RUNS", tempfile.mkdtemp(prefix="sharpen-bench-"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("name", choices=["rate", "first", "waiting", "tracing", "sdk"])
    parser.add_argument("--package", default="sharpen")
    parser.add_argument("--strategy", default="shm")
    parser.add_argument("--runners", type=int, default=1)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--port", type=int, default=47591)
    return parser.parse_args()


ARGUMENTS = parse()
package: Any = importlib.import_module(ARGUMENTS.package)
IS_OURS = ARGUMENTS.package == "sharpen"
seen: dict[str, Any] = {}


@package.rollout
def agent(task: Any, llm: Any) -> float:
    package.emit_message("one")
    package.emit_message("two")
    return 1.0


@package.rollout
async def waiting_agent(task: Any, llm: Any) -> float:
    await asyncio.sleep(1)
    return 1.0


@package.algo
async def all_at_once(*, store: Any, train_dataset: Any) -> None:
    """Enqueue everything, wait for everything; the clock runs from the first call to the last outcome."""
    begin = time.perf_counter()
    await store.add_resources({"llm": package.LLM(endpoint="http://127.0.0.1:1", model="m")})
    ids = []
    for start in range(0, len(train_dataset), 500):
        requests = [package.EnqueueRolloutRequest(input=x, mode="train") for x in train_dataset[start : start + 500]]
        ids += [each.rollout_id for each in await store.enqueue_many_rollouts(requests)]
    done = await wait(store, ids)
    seen["seconds"] = time.perf_counter() - begin
    seen["failed"] = sum(each.status != "succeeded" for each in done)
    seen["end"] = time.perf_counter()
    seen["spans"] = len(await store.query_spans(ids[0]))


async def wait(store: Any, ids: list[str]) -> list[Any]:
    if IS_OURS:
        return list(await store.wait_for_rollouts(rollout_ids=ids, timeout=300))
    # The peer's wait asks for every id in turn once a second; asked without waiting it is fastest.
    left, done = set(ids), []
    while left:
        for each in await store.wait_for_rollouts(rollout_ids=list(left), timeout=0):
            left.discard(each.rollout_id)
            done.append(each)
        await asyncio.sleep(0.02)
    return done


def trainer(**more: Any) -> Any:
    strategy: dict[str, Any] = {"type": ARGUMENTS.strategy, "n_runners": ARGUMENTS.runners}
    if ARGUMENTS.strategy == "shm":
        strategy["main_thread"] = "algorithm"
    elif not IS_OURS:
        strategy |= {"server_port": ARGUMENTS.port, "server_host": "127.0.0.1"}
    if IS_OURS:
        more.setdefault("store", "memory" if ARGUMENTS.strategy == "shm" else None)
    else:
        path = f"{package.LitAgentRunner.__module__}.LitAgentRunner"
        more["runner"] = {"type": path, "poll_interval": 0.05, "interval_jitter": 0.0}
    settings = {"algorithm": all_at_once, "n_runners": ARGUMENTS.runners, "tracer": package.OtelTracer()}
    return package.Trainer(**settings, strategy=strategy, **more)


def rate() -> dict[str, Any]:
    trainer().fit(agent, train_dataset=[{"q": n} for n in range(ARGUMENTS.rollouts)])
    return {"value": round(ARGUMENTS.rollouts / seen["seconds"], 1), "failed": seen["failed"], "spans": seen["spans"]}


def first() -> dict[str, Any]:
    """As a user writes it: nothing but `sharpen` is imported, the strategy is the default one."""
    figures = {}
    for name in ("first", "second"):
        begin = time.perf_counter()
        package.Trainer(algorithm=all_at_once).fit(agent, train_dataset=[{"q": 1}])
        figures[name] = round(seen["end"] - begin, 3)
        time.sleep(2)  # a person does not call `fit` again in the same instant
    return figures


def waiting() -> dict[str, Any]:
    begin = time.perf_counter()
    runner = {"type": "LitAgentRunner", "concurrency": 1000}
    fitted = package.Trainer(algorithm=all_at_once, strategy="shm", store="memory", runner=runner)
    fitted.fit(waiting_agent, train_dataset=list(range(1000)))
    return {"value": round(time.perf_counter() - begin, 2), "failed": seen["failed"]}


def tracing() -> dict[str, Any]:
    """The same rollouts with 0 and with 100 spans each: what a span adds."""
    without, with_spans = cost_of(0), cost_of(100)
    return {
        "agent_us": round(with_spans["agent"] * 1e6, 1),
        "all_us": round((with_spans["all"] - without["all"]) / 100 * 1e6, 1),
    }


def cost_of(spans: int, rollouts: int = 200) -> dict[str, float]:
    @package.rollout
    def emitting(task: Any, llm: Any) -> float:
        begin = time.thread_time()
        for number in range(spans):
            package.emit_message(str(number))
        return (time.thread_time() - begin) / max(spans, 1)

    os.environ["SHARPEN_WARM"] = "0"
    before = _cpu()
    result = package.Trainer(algorithm=all_at_once).fit(emitting, train_dataset=[{"q": n} for n in range(rollouts)])
    used = _cpu() - before
    return {"agent": result.metrics["reward_mean"], "all": used / rollouts}


def sdk() -> dict[str, Any]:
    """Spans made with OpenTelemetry's SDK inside a trace, beside the same spans with nobody recording them."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    sizes: dict[str, dict[str, Any]] = {
        "small": {"a": 1, "b": "two"},
        "llm": {f"gen_ai.key{number}": "v" * 50 for number in range(16)},
    }
    figures: dict[str, Any] = {}
    tracer = package.OtelTracer()
    with tracer.lifespan():
        for name, attributes in sizes.items():
            ours, alone = [], []
            for _ in range(9):
                ours.append(tracer.trace_run(span_us, trace.get_tracer("recorded"), attributes))
                alone.append(span_us(TracerProvider().get_tracer("alone"), attributes))
            figures |= {name: statistics.median(ours), f"{name}_sdk_alone": statistics.median(alone)}
    return {name: round(value, 1) for name, value in figures.items()}


def span_us(tracer: Any, attributes: dict[str, Any], count: int = 1500) -> float:
    begin = time.thread_time()
    for _ in range(count):
        with tracer.start_as_current_span("chat", attributes=attributes):
            pass
    return (time.thread_time() - begin) / count * 1e6


def _cpu() -> float:
    """CPU seconds of this process and of the children that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


if __name__ == "__main__":
    print(
        json.dumps({"rate": rate, "first": first, "waiting": waiting, "tracing": tracing, "sdk": sdk}[ARGUMENTS.name]())
    )
    os._exit(0)
