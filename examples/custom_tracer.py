"""A tracer of one's own: here it notes on every rollout where it ran.

    python examples/custom_tracer.py

A tracer is copied into every runner. Subclass one that records (`OtelTracer`), or write the few methods of `Tracer`.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sharpen import OtelTracer, Trainer


class MyCustomTracer(OtelTracer):
    """Adds a span with the process that ran the attempt."""

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **where: Any) -> AsyncIterator[Any]:
        async with super().trace_context(name, **where) as opened:
            self.create_span("ran in", attributes={"process.pid": os.getpid()})
            yield opened


def agent(task: int) -> float:
    """Squares."""
    return float(task**2)


if __name__ == "__main__":
    trainer = Trainer(
        tracer=MyCustomTracer,  # or {"type": "myproject.tracing.MyCustomTracer"}
    )
    trainer.dev(agent, [1, 2])
    for rollout in asyncio.run(trainer.store.query_rollouts()):
        for span in asyncio.run(trainer.store.query_spans(rollout.rollout_id, name="ran in")):
            elsewhere = span.attributes["process.pid"] != os.getpid()
            print(f"{rollout.input} ran in {'another' if elsewhere else 'this'} process")
