"""Run code of one's own at fixed moments of every rollout.

    python examples/hooks.py

A hook is called with the keywords that its own signature takes. It lives where the agent lives, here in a runner
process. What it raises is logged and counted, and fails nothing.
"""

from typing import Any

from sharpen import Hook, Rollout, Span, Trainer, emit_reward


class MyHook(Hook):
    """Says what begins and what came of it."""

    async def on_rollout_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Rollout) -> None:
        print(f"start {rollout.input}", flush=True)

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Rollout, spans: list[Span]) -> None:
        print(f"end {rollout.input}: {len(spans)} spans", flush=True)


async def agent(task: str) -> None:
    """Likes long words."""
    emit_reward(len(task) / 10)


if __name__ == "__main__":
    trainer = Trainer(dev=True, hooks=MyHook())
    trainer.fit(agent, ["one", "two", "three"])
