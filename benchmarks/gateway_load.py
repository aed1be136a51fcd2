"""The load of `gateway.py`: many calls, and how long they took. Prints one JSON line.

    python benchmarks/gateway_load.py rate --urls http://127.0.0.1:8000/v1/chat/completions --calls 1000

A key may follow a URL after `#`. The client is aiohttp: neither ours nor the peer's.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import aiohttp

BODY: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "x" * 500}]}
WARM_CALLS = 10


class Load:
    """Calls over kept connections."""

    def __init__(self, session: aiohttp.ClientSession, *, is_stream: bool = False) -> None:
        self.session, self.errors = session, 0
        self.body = BODY | ({"stream": True} if is_stream else {})

    async def one(self, url: str) -> float:
        """Seconds to the first byte of a stream, or to the last of a whole answer."""
        address, _, key = url.partition("#")
        begin = time.perf_counter()
        headers = {"authorization": f"Bearer {key or 'sk-any'}"}
        async with self.session.post(address, json=self.body, headers=headers) as answer:
            if "stream" in self.body:
                await answer.content.readany()
                taken = time.perf_counter() - begin
            await answer.read()
            self.errors += answer.status != 200
        return taken if "stream" in self.body else time.perf_counter() - begin


async def rate(urls: list[str], calls: int, concurrency: int) -> dict[str, Any]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:
        load = Load(session)
        for _ in range(WARM_CALLS):
            await load.one(urls[0])
        left: Iterator[str] = itertools.islice(itertools.cycle(urls), calls)
        begin = time.perf_counter()
        await asyncio.gather(*(_work(load, left) for _ in range(concurrency)))
        seconds = time.perf_counter() - begin
    return {"rate": round(calls / seconds, 1), "errors": load.errors}


async def _work(load: Load, left: Iterator[str]) -> None:
    for url in left:
        await load.one(url)


async def added(urls: list[str], calls: int, *, is_stream: bool) -> dict[str, Any]:
    """By how much the second URL is slower than the first, in the median; they take turns."""
    async with aiohttp.ClientSession() as session:
        load = Load(session, is_stream=is_stream)
        taken: dict[str, list[float]] = {url: [] for url in urls}
        for number in range(calls + WARM_CALLS):
            for url in urls:
                seconds = await load.one(url)
                if number >= WARM_CALLS:
                    taken[url].append(seconds)
    direct, through = (statistics.median(taken[url]) * 1000 for url in urls)
    figures = {"direct_ms": round(direct, 3), "through_ms": round(through, 3)}
    return figures | {"added_ms": round(through - direct, 3), "errors": load.errors}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("name", choices=["rate", "latency", "first"])
    parser.add_argument("--urls", nargs="+", required=True)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.name == "rate":
        figures = asyncio.run(rate(arguments.urls, arguments.calls, arguments.concurrency))
    else:
        figures = asyncio.run(added(arguments.urls, arguments.calls, is_stream=arguments.name == "first"))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
