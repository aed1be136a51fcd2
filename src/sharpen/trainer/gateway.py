"""The gateway of a run: it works with the store of the run, from before the algorithm begins until after it has ended
and the runners have let go of their attempts.

One that is running already is somebody else's: it is used as it is, and stays up afterwards. One that the run has
started and that dies is started again; when it does not come back, the run ends. Where it was is kept in the folder of
the run, so that a resumed run starts it there. Runners that would find work at once wait until it answers.
"""

import asyncio
import contextlib
import logging
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..algorithm.base import Gateway
from ..algorithm.handed_on import moved
from ..errors import ConfigError, PortTakenError, RunError, describe
from ..execution.events import ExecutionEvent, RunEvent
from ..files import read_json, write_json
from ..http.proxies import is_loopback
from ..secrets import ENV_PREFIX
from ..store import LightningStore
from ..store.transitions import FINISHED
from ..types import LLM, ROLLOUT_STATUSES, NamedResources
from ..web.serving import address

log = logging.getLogger(__name__)
MAIN_LLM = "main_llm"
COUNTED = ("calls", "refused", "errors", "input_tokens", "output_tokens", "cost")
UNPRICED = "unpriced"
PREFIX = "llm/"
PLACE = "checkpoints/gateway.json"
"""In the folder of a run: the address of its gateway."""
LOOK_SECONDS = 0.02
START_PAUSES = (0.0, 0.5, 1.0, 2.0)
"""Seconds after each start that failed; the next failure ends the run."""
RESTART_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each restart of a gateway that died; when all have failed, the run ends."""
STEADY_SECONDS = 60.0
"""After so long, a death is the first one again."""


class RunGateway:
    """A gateway, if there is one, as a run sees it.

    Args:
        gateway: The gateway; a user's own may have no more than an algorithm needs.
        run_dir: The folder of the run.
        has_travelled: Whether it came from another process, so that its store stayed there.
        holds_calls: Whether one that the run starts lets no call through before it is told to.
    """

    def __init__(
        self,
        gateway: Gateway | None,
        run_dir: Path | None = None,
        *,
        has_travelled: bool = False,
        holds_calls: bool = False,
    ) -> None:
        self._gateway: Any = gateway
        self._run_dir, self._has_travelled, self._holds_calls = run_dir, has_travelled, holds_calls
        self._is_ours = hasattr(gateway, "set_store")
        self._before: dict[str, float] = {}
        self._restarts = self._tries = 0
        self._steady_at = 0.0
        self._error: RunError | None = None
        self.notice = ""
        """What people who look at the run must know of it; mostly nothing."""
        self.own_address: str | None = None
        """Where it is, if the run has started it."""

    # -- from its start to its end -------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def at_work(self, store: LightningStore, event: ExecutionEvent) -> AsyncIterator[None]:
        """It runs as long as the block lasts, and then until the runners have ended, unless it ran before."""
        gateway = self._gateway
        if gateway is None or gateway.is_running():
            self._before = await self._counts()
            _start_runners(event)
            yield
            return
        with self._lent(store, event):
            before = await self._last_address(store)
            await self._start_near(before)
            try:
                await self._settle(store, before)
                _start_runners(event)
                async with self._watched():
                    yield
            finally:
                try:
                    await _runners_end(event)
                finally:
                    await asyncio.shield(gateway.stop())

    @contextlib.contextmanager
    def _lent(self, store: LightningStore, event: ExecutionEvent) -> Iterator[None]:
        """With the store and the name of the run, and within reach of its agents; afterwards as it was, since somebody
        may use it again.

        Totals and limits go by the name: a run counts for itself, also in a store that others use, and goes on
        counting when it is resumed. A gateway that only this machine can reach asks for a token of the run, except
        under the URL of an attempt. Where agents run on other machines too, it listens at an address that all of them
        know, and asks everybody for a token.
        """
        gateway = self._gateway
        if not self._is_ours:
            yield
            return
        # One of the user's own may know nothing of other machines and of tokens.
        names = [name for name in ("port", "name", "reach", "run_token") if hasattr(gateway, name)]
        before = {name: getattr(gateway, name) for name in names}
        old_store = None if self._has_travelled else gateway.get_store()
        gateway.set_store(store)
        if self._run_dir is not None:
            gateway.name = f"{gateway.name}-{_run_name(self._run_dir)}"
        reach = event.reach if isinstance(event, RunEvent) else None
        if "reach" in before and is_loopback(gateway.host):
            if reach is None:
                gateway.run_token = secrets.token_urlsafe(32)
            else:
                gateway.reach = reach.host, gateway.reach[1] or f"{ENV_PREFIX}{reach.token_variable}"
        try:
            yield
        finally:
            if not gateway.is_running():
                gateway.set_store(old_store)
                for name, value in before.items():
                    setattr(gateway, name, value)

    async def _start_near(self, before: str | None) -> None:
        """At the port where it was before, so that rollouts which wait still find it."""
        gateway = self._gateway
        port = None if before is None else urlsplit(before).port
        if port is not None and gateway.port is None:
            gateway.port = port
            try:
                await self._start()
            except PortTakenError:
                log.warning("port %d, which the gateway of this run had before, is in use; using another one", port)
                gateway.port = None
        if not gateway.is_running():
            await self._start()

    async def _start(self) -> None:
        """Start it, several times if its process ends in its start, as those of the store and of runners."""
        for pause in START_PAUSES:
            try:
                await self._gateway.start()
            except RunError as error:
                log.warning("the gateway did not start; retrying in %g s: %s", pause, error)
                await asyncio.sleep(pause)
            else:
                return
        await self._gateway.start()

    async def _settle(self, store: LightningStore, before: str | None) -> None:
        """What must be so before any runner begins: whoever waits has its address, and calls are held if they are to
        be."""
        if not self._is_ours:
            self._before = await self._counts()  # others may have called it
            return
        self.own_address = address(self._gateway.host, self._gateway.port)
        if before is not None and before != self.own_address:
            await move_endpoint(store, before, self.own_address)
        if self._run_dir is not None:
            write_json(self._run_dir / PLACE, {"address": self.own_address})
        if self._holds_calls:
            await self._gateway.pause()

    async def _last_address(self, store: LightningStore) -> str | None:
        """Return where the gateway of this run was."""
        if not self._is_ours or self._run_dir is None:
            return None
        if (place := self._run_dir / PLACE).exists():
            return str(read_json(place, kind=dict)["address"])
        worker = await store.get_worker_by_id(f"gateway-of-{_run_name(self._run_dir)}")  # where version 0.1 kept it
        return None if worker is None else (worker.heartbeat_stats or {}).get("address")

    # -- when it dies --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """It is restarted when it dies; when it has died for good, the block is cancelled, and the error raised.

        A thread watches, since an algorithm may keep its event loop busy for long. A restart under way at the end goes
        on: whoever stops the gateway next waits for it.
        """
        task, loop, is_over = asyncio.current_task(), asyncio.get_running_loop(), threading.Event()
        assert task is not None

        def watch() -> None:
            while not is_over.wait(LOOK_SECONDS * 5) and self._error is None:
                if self._gateway.has_died():
                    self._bring_back(is_over)
            if self._error is not None and not is_over.is_set():
                loop.call_soon_threadsafe(lambda: is_over.is_set() or task.cancel())

        if self._is_ours:
            threading.Thread(target=watch, name="sharpen-gateway-watch", daemon=True).start()
        try:
            yield
        except asyncio.CancelledError:
            if self._error is None or task.uncancel():  # somebody else wants the end, too
                raise
            raise self._error from None
        finally:
            is_over.set()

    def _bring_back(self, is_over: threading.Event) -> None:
        """Restart it at its address. One that was stopped stays so."""
        before, self.notice = self.notice, "the gateway is down"
        died, reason = time.monotonic(), "it kept dying"
        if died > self._steady_at:
            self._tries = 0
        for pause in RESTART_PAUSES[self._tries :]:
            self._tries += 1
            when = f", in {pause:g} s" if pause else ""
            log.warning("the gateway of this run died: restart %d of %d%s", self._tries, len(RESTART_PAUSES), when)
            if is_over.wait(pause):
                return
            try:
                has_restarted = self._gateway.revive_sync()
            except Exception as error:  # noqa: BLE001 - whatever it was: it is tried again, and told in the end
                reason = describe(error)
                log.warning("could not start the gateway of this run: %s", reason)
                continue
            if not has_restarted:
                self.notice = before
                return
            self._restarts, now = self._restarts + 1, time.monotonic()
            self._steady_at = now + STEADY_SECONDS
            self.notice = f"the gateway was restarted {'once' if self._restarts == 1 else f'{self._restarts} times'}"
            log.warning("the gateway of this run is responding again, %.1f s after it died", now - died)
            return
        self._error = RunError(
            f"the gateway of this run died and did not come back after {self._tries} restarts ({reason}): see its "
            "output on standard error; fit(..., resume='last') resumes the run"
        )
        log.error("%s", self._error)

    # -- what agents are given -----------------------------------------------------------------------

    def add_to(self, resources: NamedResources | None, *, needs_llm: bool = False) -> NamedResources | None:
        """Return the first resources of the run: with the gateway as `main_llm` where they hold no LLM.

        `needs_llm` says that the agent asks for one, and that nobody else will publish it.
        """
        given = resources or {}
        if self._gateway is None or any(isinstance(each, LLM) for each in given.values()):
            return resources
        if MAIN_LLM in given:
            raise ConfigError(f"initial_resources[{MAIN_LLM!r}] is not an LLM: use another name for it")
        names = getattr(self._gateway, "model_names", None)
        if names is None:
            return {**given, MAIN_LLM: self._gateway.as_resource()}
        plain = [name for name in names if "*" not in name]
        if plain:
            if len(plain) > 1:
                log.info("%s uses %r, the first model of the gateway", MAIN_LLM, plain[0])
            return {**given, MAIN_LLM: self._gateway.as_resource(model=plain[0])}
        lack = f"the gateway has no named model, so no {MAIN_LLM} is published"
        if needs_llm:
            raise ConfigError(f"{lack}, but the agent takes llm: pass a model_list, or an LLM in initial_resources")
        log.warning("%s: agents have no LLM until one is published", lack)
        return resources

    # -- what it has done ----------------------------------------------------------------------------

    async def metrics(self) -> dict[str, float]:
        """Return what the calls of this run came to so far, by the names of metrics."""
        found = {name: value - self._before.get(name, 0) for name, value in (await self._counts()).items()}
        if not found.get(UNPRICED):
            found.pop(UNPRICED, None)
        elif not found["cost"]:
            del found["cost"]  # nobody knows the prices: that is not the same as nothing
        return {PREFIX + name: value for name, value in found.items()}

    async def open_calls(self) -> tuple[int, int]:
        """Return how many calls of agents a model works on, and how many are held until it is ready."""
        found: tuple[int, int] | None = await self._ask("open_calls")
        return found or (0, 0)

    async def _counts(self) -> dict[str, float]:
        totals = await self._ask("totals")
        return {} if totals is None else {name: getattr(totals, name) for name in (*COUNTED, UNPRICED)}

    async def _ask(self, question: str) -> Any:
        """None where the gateway knows no such question, or cannot be asked now."""
        if hasattr(self._gateway, question):
            try:
                return await getattr(self._gateway, question)()
            except RunError as error:
                log.debug("could not read the %s of the gateway: %s", question, error)
        return None


def summary(metrics: dict[str, float]) -> str:
    """Return one line for the end of a run."""
    calls, refused, errors, tokens_in, tokens_out, cost = (metrics.get(PREFIX + name, 0) for name in COUNTED)
    extras = "".join(f", {value:,.0f} {what}" for value, what in ((refused, "refused"), (errors, "failed")) if value)
    unpriced = metrics.get(PREFIX + UNPRICED, 0)
    money = f", ${cost:,.4f}" if cost else ""
    if unpriced:
        money += f"{' and' if cost else ','} {unpriced:,.0f} call{'s' * (unpriced != 1)} of unknown price"
    return f"LLM calls: {calls:,.0f}{extras}; tokens: {tokens_in:,.0f} in, {tokens_out:,.0f} out{money}"


def _run_name(run_dir: Path) -> str:
    return re.sub(r"[^\w.-]", "-", run_dir.name)[:100]


# -- the runners beside it ---------------------------------------------------------------------------


def _start_runners(event: ExecutionEvent) -> None:
    """Let them begin, where the strategy has them wait."""
    if isinstance(event, RunEvent):
        event.start_runners()


async def _runners_end(event: ExecutionEvent) -> None:
    """Wait until agents make no more calls, where the strategy can tell. How long that takes is up to the strategy."""
    if not isinstance(event, RunEvent):
        return
    event.end_runners()
    while not event.have_runners_ended():
        # The end has been asked for: asking again must not leave the agents without their gateway.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(LOOK_SECONDS)


# -- one that has moved ------------------------------------------------------------------------------


async def move_endpoint(store: LightningStore, old: str, new: str) -> None:
    """Give every rollout that is not finished its own resources again, with the new address of the gateway in them."""
    latest = await store.get_latest_resources()
    if latest is None:
        return
    waiting: dict[tuple[str, int], list[str]] = {}
    for rollout in await store.query_rollouts(status_in=[each for each in ROLLOUT_STATUSES if each not in FINISHED]):
        if rollout.resources_id is not None and rollout.resources_version is not None:
            waiting.setdefault((rollout.resources_id, rollout.resources_version), []).append(rollout.rollout_id)
    last = latest.resources_id, latest.version
    waiting[last] = waiting.pop(last, [])  # at the end, so that it is the latest again
    published: list[str | None] = []
    for bound, rollout_ids in waiting.items():
        resources_id = await _publish_moved(store, bound, old, new)
        published.append(resources_id)
        for rollout_id in rollout_ids if resources_id is not None else ():
            await store.update_rollout(rollout_id, resources_id=resources_id)
    if any(published) and published[-1] is None:
        await store.update_resources(latest.resources_id, latest.resources)


async def _publish_moved(store: LightningStore, bound: tuple[str, int], old: str, new: str) -> str | None:
    """The id of the resources with the new address: a version of the same where nothing newer would be undone."""
    resources_id, version = bound
    found = await store.get_resources_by_id(resources_id, version)
    newest = await store.get_resources_by_id(resources_id)
    if found is None or newest is None:
        return None
    resources = moved(found.resources, old, new)
    if resources == found.resources:
        return None
    if newest.version == version:
        return (await store.update_resources(resources_id, resources)).resources_id
    return (await store.add_resources(resources)).resources_id
