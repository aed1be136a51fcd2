"""Waiting for an actor to answer for the first time: it needs a place in the cluster, a process and its environment.

A cluster that is full is waited for, since others may leave. A place that no node has could come only with a new node:
that is waited for within bounds, and then said.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from ...errors import RunnerStartError
from .cluster import nodes
from .resources import Amounts, fits, in_words

log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
REMIND_SECONDS = 30.0
RETRY_SECONDS = 0.5
AWAY_SECONDS = 60.0  # an actor whose node has vanished is somewhere else within this time


class Patience:
    """How long an actor is waited for, and what is said meanwhile. `setting` is where its `wanted` resources stand."""

    def __init__(self, who: str, wanted: Amounts, setting: str, placement_timeout: float) -> None:
        self._who, self._wanted, self._setting = who, wanted, setting
        self._seconds = placement_timeout
        self._began = self._said = time.monotonic()
        self._nowhere_since: float | None = None

    def check(self) -> None:
        """An error where there will be no place."""
        now, there = time.monotonic(), nodes()
        if any(fits(self._wanted, node["Resources"]) for node in there):
            self._nowhere_since = None
            self._remind(now)
            return
        if self._nowhere_since is None:
            self._nowhere_since = now
            log.warning("%s; waiting %g s for such a node", self._in_words(there), self._seconds)
        if now - self._nowhere_since >= self._seconds:
            raise RunnerStartError(
                f"{self._in_words(there)}: request less in {self._setting}, or add such a node; none appeared "
                f"within {self._seconds:g} s (placement_timeout)"
            )

    def is_over(self) -> bool:
        return time.monotonic() - self._began > AWAY_SECONDS

    def _remind(self, now: float) -> None:
        if now - self._said >= REMIND_SECONDS:
            import ray

            self._said = now
            free = in_words(ray.available_resources(), self._wanted)
            words = "%s has been waiting %.0f s for a node with %s and for its environment; free in the cluster: %s"
            log.warning(words, self._who, now - self._began, in_words(self._wanted, self._wanted), free)

    def _in_words(self, there: list[dict[str, Any]]) -> str:
        found = "; ".join(
            f"{node['NodeManagerAddress']} has {in_words(node['Resources'], self._wanted)}" for node in there[:5]
        )
        more = f"; and {len(there) - 5} more" if len(there) > 5 else ""
        return (
            f"no node of the Ray cluster can hold {self._who}, which needs {in_words(self._wanted, self._wanted)} "
            f"({found}{more})"
        )


async def first_answer(ask: Callable[[], Any], patience: Patience) -> Any:
    """What the actor answers, once it is there. An actor that Ray moves is asked again."""
    from ray.exceptions import ActorUnavailableError

    while True:
        answer = asyncio.wrap_future(ask().future())
        try:
            while not (await asyncio.wait([answer], timeout=LOOK_SECONDS))[0]:
                await asyncio.to_thread(patience.check)
            return answer.result()
        except ActorUnavailableError:
            if patience.is_over():
                raise
        finally:
            answer.cancel()
        await asyncio.sleep(RETRY_SECONDS)
