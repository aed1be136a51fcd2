"""The single measures of `store.py`. Each prints one JSON line; run it by itself to profile it.

python benchmarks/store_measures.py cycle_memory --package sharpen|agentlightning
"""

import argparse
import asyncio
import contextlib
import gc
import importlib
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

QUEUED, CYCLES = 10_000, 2_000


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_kilobyte_span(package: Any, rollout: Any, number: int) -> Any:
    """1 kB as JSON: a chat call with its texts and a few token ids."""
    return package.Span.from_attributes(
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.input.messages": "x" * 280,
            "gen_ai.output.messages": "y" * 100,
            "response_token_ids": list(range(1000, 1024)),
        },
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        name="openai.chat.completion",
    )


def make_span(package: Any, rollout: Any, number: int) -> Any:
    """About 1.5 kB as JSON: a chat call with all its token ids."""
    return package.Span.from_attributes(
        attributes={
            "gen_ai.request.model": "m",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "x" * 200,
            "gen_ai.completion.0.content": "y" * 100,
            "prompt_token_ids": list(range(128)),
            "response_token_ids": list(range(64)),
        },
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        name="openai.chat.completion",
    )


async def fill(package: Any, store: Any, count: int = QUEUED) -> None:
    await store.add_resources({"llm": package.LLM(endpoint="http://x", model="m")})
    for start in range(0, count, 500):
        requests = [package.EnqueueRolloutRequest(input={"q": start + i}, mode="train") for i in range(500)]
        await store.enqueue_many_rollouts(requests[: count - start])


async def cycle(package: Any, store: Any) -> None:
    rollout = await store.dequeue_rollout(worker_id="worker-0")
    await store.add_span(make_span(package, rollout, 1))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")


async def cycles_per_second(package: Any, store: Any, cycles: int = CYCLES) -> float:
    for _ in range(50):
        await cycle(package, store)
    started = time.perf_counter()
    for _ in range(cycles):
        await cycle(package, store)
    return cycles / (time.perf_counter() - started)


async def cycle_memory(package: Any) -> dict[str, Any]:
    store = package.InMemoryLightningStore()
    await fill(package, store)
    return {"value": round(await cycles_per_second(package, store)), "unit": "cycles/s"}


async def cycle_sqlite(package: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = package.SQLiteStore(Path(folder) / "store.db")
        await fill(package, store)
        value = round(await cycles_per_second(package, store))
        await store.close()
    return {"value": value, "unit": "cycles/s"}


PEER_SERVER = """
import asyncio, logging, agentlightning as agl
logging.disable(logging.WARNING)
async def main():
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(thread_safe=True), host="127.0.0.1", port={port})
    await server.start()
    await asyncio.sleep(10**6)
asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def served(package: Any) -> AsyncIterator[Any]:
    """A client of a server in another process: ours on SQLite, the peer's in memory."""
    port = 20_000 + os.getpid() % 20_000
    with tempfile.TemporaryDirectory() as folder:
        if package.__name__ == "sharpen":
            command = [sys.executable, "-m", "sharpen.store", f"{folder}/store.db", "--port", str(port)]
            health = f"http://127.0.0.1:{port}/health"
        else:
            command = [sys.executable, "-c", PEER_SERVER.format(port=port)]
            health = f"http://127.0.0.1:{port}/v1/agl/health"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await asyncio.to_thread(wait_for, health, process)
            client = package.LightningStoreClient(f"http://127.0.0.1:{port}")
            yield client
            await client.close()
        finally:
            process.terminate()
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError("the server ended")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=1).close()
            return
        time.sleep(0.1)
    raise RuntimeError("the server did not answer")


async def http_in_turn(package: Any) -> dict[str, Any]:
    async with served(package) as store:
        await fill(package, store, 2_000)
        cycles = 1_000 if package.__name__ == "sharpen" else 200
        return {"value": round(await cycles_per_second(package, store, cycles), 1), "unit": "cycles/s"}


async def http_runner(package: Any) -> dict[str, Any]:
    """16 cycles in flight: ours as a runner does it, the peer's with the calls it has."""
    async with served(package) as store:
        total = 8_000 if package.__name__ == "sharpen" else 400
        await fill(package, store, total + 64)
        started = time.perf_counter()
        await (our_runner if package.__name__ == "sharpen" else their_runner)(package, store, total)
        return {"value": round(total / (time.perf_counter() - started), 1), "unit": "cycles/s"}


async def our_runner(package: Any, store: Any, total: int) -> None:
    async def finish(rollout: Any) -> None:
        attempt_id = rollout.attempt.attempt_id
        span = make_span(package, rollout, 1)
        await store.complete_attempt(rollout.rollout_id, attempt_id, spans=[span], status="succeeded")

    claimed, at_work = 0, set[asyncio.Task[None]]()
    while claimed < total or at_work:
        if claimed < total and len(at_work) <= 8:
            for rollout in await store.dequeue_many_rollouts(limit=16 - len(at_work), worker_id="worker-0"):
                at_work.add(asyncio.create_task(finish(rollout)))
                claimed += 1
        done, at_work = await asyncio.wait(at_work, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def their_runner(package: Any, store: Any, total: int) -> None:
    async def slot() -> None:
        for _ in range(total // 16):
            await cycle(package, store)

    await asyncio.gather(*(slot() for _ in range(16)))


async def spans_bulk(package: Any) -> dict[str, Any]:
    async with served(package) as store:
        await fill(package, store, 64)
        ours = package.__name__ == "sharpen"
        batches, size = (160, 500) if ours else (16, 32)
        rollouts = [await store.dequeue_rollout(worker_id="worker-0") for _ in range(16)]
        work = [
            [make_kilobyte_span(package, rollouts[b % 16], b * size + i + 1) for i in range(size)]
            for b in range(batches)
        ]
        started = time.perf_counter()
        if ours:
            for start in range(0, batches, 4):
                await asyncio.gather(*(store.add_many_spans(batch) for batch in work[start : start + 4]))
        else:
            for batch in work:
                await store.add_many_spans(batch)
        return {"value": round(batches * size / (time.perf_counter() - started)), "unit": "spans/s"}


async def memory_10k(package: Any) -> dict[str, Any]:
    gc.collect()
    store, before = package.InMemoryLightningStore(), rss_bytes()
    await fill(package, store, 10_000)
    for _ in range(10_000):
        rollout = await store.dequeue_rollout(worker_id="worker-0")
        await store.add_many_spans([make_span(package, rollout, number) for number in range(1, 5)])
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    gc.collect()
    return {"value": round((rss_bytes() - before) / 2**20, 1), "unit": "MB"}


async def import_time(package: Any) -> dict[str, Any]:
    def seconds(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    times = [seconds(f"import {package.__name__}") - seconds("pass") for _ in range(5)]
    return {"value": round(max(statistics.median(times), 0.001), 3), "unit": "CPU s"}


async def scale(package: Any, sizes: list[int]) -> dict[str, Any]:
    """Median time of a claim and of a page of 50 by status, in one SQLite file as it grows."""
    with tempfile.TemporaryDirectory() as folder:
        store, rows, filled = package.SQLiteStore(Path(folder) / "store.db"), [], 0
        for size in sizes:
            while filled < size:
                count = min(5_000, size - filled)
                requests = [package.EnqueueRolloutRequest({"q": filled + i}, mode="train") for i in range(count)]
                await store.enqueue_many_rollouts(requests)
                filled += count
            claim, query = [], []
            for number in range(200):
                started = time.perf_counter()
                rollout = await store.dequeue_rollout(worker_id="worker-0")
                claim.append(time.perf_counter() - started)
                await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
                status = ("succeeded", "queuing")[number % 2]
                started = time.perf_counter()
                await store.query_rollouts(status_in=[status], limit=50)
                query.append(time.perf_counter() - started)
            row = {"rollouts": size, "claim_us": statistics.median(claim) * 1e6}
            rows.append(row | {"query_us": statistics.median(query[50:]) * 1e6})
        await store.close()
    ratios = {name: round(rows[-1][name] / rows[0][name], 2) for name in ("claim_us", "query_us")}
    rounded = [{name: round(value) for name, value in row.items()} for row in rows]
    return {
        "measure": "claim and query of 50 by status, SQLite, from smallest to largest",
        "sizes": rounded,
        "slower": ratios,
        "goal": 2,
        "reached": max(ratios.values()) <= 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("measure")
    parser.add_argument("--package", default="sharpen")
    parser.add_argument("--sizes", default="1000,100000")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    package = importlib.import_module(arguments.package)
    run = globals()[arguments.measure]
    sizes = [int(size) for size in arguments.sizes.split(",")]
    work = run(package, sizes) if arguments.measure == "scale" else run(package)
    print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    main()
