"""Calls of agents wait at the gateway while no model is behind it. No torch.

Runners claim what an earlier life of the run left in the queue as soon as they start, and work on when training has
failed. A call that finds no model would fail its rollout, by the fault of its agent as it seems.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ..errors import RunError, SharpenError

log = logging.getLogger(__name__)

DRAIN_SECONDS = 3.0
AGENT_SECONDS = 20.0  # more than runners give their agents
LOOK_SECONDS = 0.05


class HeldCalls:
    """Only a gateway that is ours, as the run itself has started it, is held: others have callers of their own."""

    def __init__(self, gateway: Any, *, is_ours: bool) -> None:
        can_hold = is_ours and hasattr(gateway, "pause") and gateway.is_running()
        self._gateway = gateway if can_hold else None
        self.held_at = 0.0
        """When they were last held, in seconds since the epoch."""

    async def hold(self) -> None:
        """Calls wait from now on; those under way go on."""
        self.held_at = time.time()
        await self._order("pause")

    async def let_go(self) -> None:
        """Calls find what they need from now on."""
        await self._order("resume")

    @contextlib.asynccontextmanager
    async def let_through(self, are_agents_at_work: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
        """Inside there is a model. After an error calls are held again, for good: runners take their agents back.

        When the run is cancelled runners give their agents some time to end; so long the model stays.
        """
        await self.let_go()
        try:
            yield
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                await self._wait_while(are_agents_at_work)
            await self.hold()
            await self._order("drain", DRAIN_SECONDS)
            raise

    async def _wait_while(self, are_at_work: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(AGENT_SECONDS):
                # Whether agents are at work is known to the store alone, wherever they are.
                while (self._gateway is None or self._gateway.is_running()) and await are_at_work():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)
        except (TimeoutError, SharpenError) as error:
            log.debug("stopping the model before the agents have ended: %r", error)

    async def _order(self, name: str, *arguments: Any) -> None:
        if self._gateway is None:
            return
        try:
            await getattr(self._gateway, name)(*arguments)
        except RunError as error:
            log.debug("the gateway did not %s: %s", name, error)
