"""The gateway of a run: it works with the store of the run, from before the algorithm begins until after it has ended
and the runners have let go of their attempts.

One that runs already is somebody else's: it is used as it is, and goes on afterwards. One that the run has started and
that dies is started again; when it does not come back, the run ends.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

from ..algorithm.base import Gateway
from ..errors import ConfigError, PortTakenError, RunError
from ..execution.events import ExecutionEvent, RunEvent
from ..http.proxies import is_loopback
from ..runner.bundle import GatewayReadiness
from ..secrets import ENV_PREFIX
from ..store import LightningStore
from ..types import LLM, NamedResources
from ..web.serving import address
from .gateway_watch import GatewayWatch
from .moving import move_endpoint

log = logging.getLogger(__name__)
MAIN_LLM = "main_llm"
COUNTED = ("calls", "refused", "errors", "input_tokens", "output_tokens", "cost")
UNPRICED = "unpriced"
PREFIX = "llm/"
LOOK_SECONDS = 0.02
START_PAUSES = (0.0, 0.5, 1.0, 2.0)
"""Seconds after each start that failed; the next failure ends the run."""


class RunGateway:
    """A gateway, if there is one, as a run sees it."""

    def __init__(
        self,
        gateway: Gateway | None,
        *,
        readiness: GatewayReadiness | None = None,
        has_travelled: bool = False,
        holds_calls: bool = False,
    ) -> None:
        """With `holds_calls` one that the run starts lets no call through before it is told to."""
        self._gateway: Any = gateway  # a gateway of the user's own may have no more than an algorithm needs
        self._readiness, self._has_travelled, self._holds_calls = readiness, has_travelled, holds_calls
        self._before: dict[str, float] = {}
        self._watch: GatewayWatch | None = None
        self.own_address: str | None = None
        """Where it is, if the run has started it."""

    @contextlib.asynccontextmanager
    async def at_work(self, store: LightningStore, event: ExecutionEvent) -> AsyncIterator[None]:
        """It runs as long as the block lasts, and then until the runners have ended, unless it ran before."""
        async with contextlib.AsyncExitStack() as stack:
            if self._gateway is not None and not self._gateway.is_running():
                await stack.enter_async_context(self._started(store, event))
            else:
                self._before = await self._counts()
                await self._announce(store, None)
            yield

    @contextlib.asynccontextmanager
    async def _started(self, store: LightningStore, event: ExecutionEvent) -> AsyncIterator[None]:
        gateway = self._gateway
        with self._lent(store) as is_ours, self._within_reach(event):
            old = await self._readiness.last_address(store) if is_ours and self._readiness is not None else None
            await self._start(old)
            try:
                self.own_address = now = address(gateway.host, gateway.port) if is_ours else None
                if not is_ours:
                    self._before = await self._counts()  # others may have called it
                if old is not None and now is not None and old != now:
                    await move_endpoint(store, old, now)
                if self._holds_calls and hasattr(gateway, "pause"):
                    await gateway.pause()  # before any runner begins
                await self._announce(store, now)
                async with self._watched():
                    yield
            finally:
                try:
                    await _runners_end(event)
                finally:
                    await asyncio.shield(gateway.stop())

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """The block is cancelled, and the error raised in its place, when the gateway has died for good."""
        if not hasattr(self._gateway, "revive_sync"):
            yield
            return
        task, loop, is_over = asyncio.current_task(), asyncio.get_running_loop(), False
        assert task is not None

        def cancel() -> None:
            if not is_over:
                task.cancel()

        with GatewayWatch(self._gateway, give_up=lambda: loop.call_soon_threadsafe(cancel)) as self._watch:
            try:
                yield
            except asyncio.CancelledError:
                if self._watch.error is None or task.uncancel():  # somebody else wants the end, too
                    raise
                raise self._watch.error from None
            finally:
                is_over = True

    async def _announce(self, store: LightningStore, address: str | None) -> None:
        if self._readiness is not None:
            await self._readiness.announce(store, address)

    @contextlib.contextmanager
    def _lent(self, store: LightningStore) -> Iterator[bool]:
        """With the store and the name of the run; afterwards with what it came with, as somebody may use it on. False
        where it is of a kind that has neither.

        Totals and limits go by the name: a run counts for itself, also in a store that others use, and goes on
        counting when it is resumed.
        """
        gateway = self._gateway
        if not hasattr(gateway, "set_store"):
            yield False
            return
        before, port, name = None if self._has_travelled else gateway.get_store(), gateway.port, gateway.name
        gateway.set_store(store)
        if self._readiness is not None:
            gateway.name = f"{name}-{self._readiness.run_name}"
        try:
            yield True
        finally:
            if not gateway.is_running():
                gateway.set_store(before)
                gateway.port, gateway.name = port, name

    @contextlib.contextmanager
    def _within_reach(self, event: ExecutionEvent) -> Iterator[None]:
        """One that only this machine can reach asks for a token of the run, except under the URL of an attempt.

        Where agents run on other machines too, it listens at an address that all of them know, and asks everybody for a
        token. Afterwards it is as before.
        """
        gateway, reach = self._gateway, event.reach if isinstance(event, RunEvent) else None
        if not hasattr(gateway, "reach") or not is_loopback(gateway.host):
            yield
            return
        before = gateway.reach
        if reach is not None:
            gateway.reach = reach.host, before[1] or f"{ENV_PREFIX}{reach.token_variable}"
        else:
            gateway.run_token = secrets.token_urlsafe(32)
        try:
            yield
        finally:
            if not gateway.is_running():
                gateway.reach, gateway.run_token = before, None

    async def _start(self, old: str | None) -> None:
        """At the port where it was before, so that rollouts which wait still find it."""
        gateway = self._gateway
        port = None if old is None else urlsplit(old).port
        if port is None or gateway.port is not None:
            return await self._start_again()
        gateway.port = port
        try:
            return await self._start_again()
        except PortTakenError:
            log.warning("port %d, which the gateway of this run had before, is in use; using another one", port)
            gateway.port = None
            return await self._start_again()

    async def _start_again(self) -> None:
        """Start it, several times if its process ends in its start, as those of the store and of runners."""
        for pause in START_PAUSES:
            try:
                return await self._gateway.start()  # type: ignore[no-any-return]
            except RunError as error:
                log.warning("the gateway did not start; retrying in %g s: %s", pause, error)
                await asyncio.sleep(pause)
        return await self._gateway.start()  # type: ignore[no-any-return]

    # -- what agents are given -----------------------------------------------------------------------

    def add_to(self, resources: NamedResources | None, *, needs_llm: bool = False) -> NamedResources | None:
        """The first resources of the run: with the gateway as `main_llm` where they hold no LLM.

        `needs_llm` says that the agent asks for one, and that nobody else will publish it.
        """
        given = resources or {}
        if self._gateway is None or any(isinstance(each, LLM) for each in given.values()):
            return resources
        if MAIN_LLM in given:
            raise ConfigError(f"initial_resources[{MAIN_LLM!r}] is not an LLM: use another name for it")
        llm = self._resource()
        if llm is not None:
            return {**given, MAIN_LLM: llm}
        lack = f"the gateway has no named model, so no {MAIN_LLM} is published"
        if needs_llm:
            raise ConfigError(f"{lack}, but the agent takes llm: pass a model_list, or an LLM in initial_resources")
        log.warning("%s: agents have no LLM until one is published", lack)
        return resources

    def _resource(self) -> LLM | None:
        names = getattr(self._gateway, "model_names", None)
        if names is None:
            return self._gateway.as_resource()  # type: ignore[no-any-return]
        plain = [name for name in names if "*" not in name]
        if not plain:
            return None
        if len(plain) > 1:
            log.info("%s uses %r, the first model of the gateway", MAIN_LLM, plain[0])
        return self._gateway.as_resource(model=plain[0])  # type: ignore[no-any-return]

    @property
    def notice(self) -> str:
        """What people who look at the run must know of it; mostly nothing."""
        return "" if self._watch is None else self._watch.notice

    # -- what it has done ----------------------------------------------------------------------------

    async def metrics(self) -> dict[str, float]:
        """What the calls of this run came to so far, by the names of metrics."""
        found = {name: value - self._before.get(name, 0) for name, value in (await self._counts()).items()}
        if not found.get(UNPRICED):
            found.pop(UNPRICED, None)
        elif not found["cost"]:
            del found["cost"]  # nobody knows the prices: that is not the same as nothing
        return {PREFIX + name: value for name, value in found.items()}

    async def open_calls(self) -> tuple[int, int]:
        """How many calls of agents a model works on, and how many are held until it is ready."""
        if not hasattr(self._gateway, "open_calls"):
            return 0, 0
        try:
            found: tuple[int, int] = await self._gateway.open_calls()
        except RunError as error:
            log.debug("could not read the gateway's open calls: %s", error)
            return 0, 0
        return found

    async def _counts(self) -> dict[str, float]:
        if not hasattr(self._gateway, "totals"):
            return {}
        try:
            totals = await self._gateway.totals()
        except RunError as error:
            log.debug("could not read the gateway's totals: %s", error)
            return {}
        return {name: getattr(totals, name) for name in (*COUNTED, UNPRICED)}


async def _runners_end(event: ExecutionEvent) -> None:
    """Wait until agents make no more calls, where the strategy can tell. How long that takes is up to the strategy."""
    if not isinstance(event, RunEvent):
        return
    event.end_runners()
    while not event.have_runners_ended():
        # The end has been asked for: asking again must not leave the agents without their gateway.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(LOOK_SECONDS)


def in_words(metrics: dict[str, float]) -> str:
    """One line for the end of a run."""
    calls, refused, errors, tokens_in, tokens_out, cost = (metrics.get(PREFIX + name, 0) for name in COUNTED)
    extras = "".join(f", {value:,.0f} {what}" for value, what in ((refused, "refused"), (errors, "failed")) if value)
    unpriced = metrics.get(PREFIX + UNPRICED, 0)
    money = f", ${cost:,.4f}" if cost else ""
    money += (
        f"{' and' if cost else ','} {unpriced:,.0f} call{'s' * (unpriced != 1)} of unknown price" if unpriced else ""
    )
    return f"LLM calls: {calls:,.0f}{extras}; tokens: {tokens_in:,.0f} in, {tokens_out:,.0f} out{money}"
