"""Hooks: a user's own code at fixed moments of an attempt."""

from typing import Any


class Hook:
    """Override what you need. A hook is called with the keywords that its own signature takes."""

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any, tracer: Any) -> None:
        """Before the trace opens."""

    async def on_trace_start(self, *, agent: Any, runner: Any, rollout: Any, tracer: Any) -> None:
        """Inside the trace, before the agent runs."""

    async def on_trace_end(self, *, agent: Any, runner: Any, rollout: Any, tracer: Any) -> None:
        """Inside the trace, after the agent ran."""

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
        """After the trace closed, before the attempt is completed."""
