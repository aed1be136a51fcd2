"""The stores of `scale.py`: opened by URL, counted, and served from processes of their own.

A server (`served`) says its address, answers every further line with what was counted, and ends with its input.
"""

import asyncio
import contextlib
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from line_process import Figures, LineProcess, next_line, say

from sharpen.store import LightningStore, LightningStoreServer

CLAIM = "dequeue_many_rollouts"


def open_store(url: str) -> Any:
    """A store of our own, or a client where the URL is a server's."""
    from sharpen import store

    if url == "memory":
        return store.InMemoryLightningStore(thread_safe=True)
    if url.startswith("http"):
        return store.LightningStoreClient(url)
    if url.startswith("postgresql"):
        return store.PostgresStore(url)
    if url.startswith("redis"):
        return store.RedisLightningStore(url)
    return store.SQLiteStore(url)


def count_claims(store: Any) -> Counter[str]:
    """From now on count what the store does for claims: how often it looks, in vain or not, and how often it wakes
    somebody."""
    seen: Counter[str] = Counter()
    write, woken = store._write, store._woken

    async def counted_write(name: str, /, *args: Any, **kwargs: Any) -> Any:
        answer = await write(name, *args, **kwargs)
        if name == CLAIM:
            seen["looks"] += 1
            seen["claimed"] += len(answer)
            seen["looks_in_vain"] += not answer
        return answer

    async def counted_woken(*args: Any) -> bool:
        is_woken: bool = await woken(*args)
        seen["wake_ups"] += is_woken
        return is_woken

    store._write, store._woken = counted_write, counted_woken
    return seen


@contextlib.contextmanager
def served(url: str, *, counting: bool = False) -> Iterator[tuple[str, LineProcess]]:
    """The address of a store server in a process of its own, which answers what it counted."""
    server = LineProcess("scale_stores.py", {"url": url, "counting": counting})
    try:
        yield server.hear()["url"], server
    finally:
        server.end()


async def serve(job: Figures) -> None:
    store: LightningStore = open_store(job["url"])
    seen = count_claims(store) if job["counting"] else Counter[str]()
    server = LightningStoreServer(store)
    await server.start()
    say({"url": server.endpoint})
    while await asyncio.to_thread(next_line) is not None:
        say(dict(seen))
    await server.close()


def main() -> None:
    logging.disable(logging.WARNING)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # as `sharpen store` does
    asyncio.run(serve(next_line() or {}))


if __name__ == "__main__":
    main()
