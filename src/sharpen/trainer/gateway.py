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
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..algorithm.base import Gateway
from ..algorithm.handoff import moved
from ..errors import ConfigError, PortTakenError, RunError, describe
from ..execution.events import ExecutionEvent, Reach, RunEvent
from ..files import read_json, write_json
from ..http.proxies import is_loopback
from ..runs.folder import FullDisk
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
        self, gateway: Gateway | None, run_dir: Path, *, has_travelled: bool = False, holds_calls: bool = False
    ) -> None:
        self._gateway: Any = gateway
        self._has_travelled, self._holds_calls = has_travelled, holds_calls
        self._place, self._run_name = run_dir / PLACE, re.sub(r"[^\w.-]", "-", run_dir.name)[:100]
        self._is_ours = hasattr(gateway, "set_store")
        self._before: dict[str, float] = {}
        self._restarts = self._tries = 0
        self._steady_at = 0.0
        self.notice = ""
        """What people who look at the run must know of it; mostly nothing."""
        self.own_address: str | None = None
        """Where it is, if the run has started it."""

    # -- from its start to its end -------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def at_work(self, store: LightningStore, event: ExecutionEvent) -> AsyncIterator[None]:
        """It runs as long as the block lasts, and then until the runners have ended, unless it ran before."""
        gateway, run_event = self._gateway, event if isinstance(event, RunEvent) else None
        start_runners: Callable[[], None] = (lambda: None) if run_event is None else run_event.start_runners
        if gateway is None or gateway.is_running():
            self._before = await self._counts()
            start_runners()
            yield
            return
        reach = None if run_event is None else run_event.reach
        with self._lent(store, reach) if self._is_ours else contextlib.nullcontext():
            before = await self._last_address(store) if self._is_ours else None
            await self._start(before)
            try:
                if self._is_ours:
                    await self._settle(store, before)
                else:
                    self._before = await self._counts()  # others may have called it
                start_runners()
                async with self._watched():
                    yield
            finally:
                try:
                    await _end_runners(run_event)
                finally:
                    await asyncio.shield(gateway.stop())

    @contextlib.contextmanager
    def _lent(self, store: LightningStore, reach: Reach | None) -> Iterator[None]:
        """With the store and the name of the run, and within reach of its agents; afterwards as it was, since somebody
        may use it again.

        Totals and limits go by the name: a run counts for itself, also in a store that others use, and continues
        counting when it is resumed. A gateway that only this machine can reach asks for a token of the run, except
        under the URL of an attempt. Where agents run on other machines too, it listens at an address that all of them
        know, and asks everybody for a token.
        """
        gateway = self._gateway
        # One of the user's own may know nothing of other machines and of tokens.
        names = [name for name in ("port", "name", "reach", "run_token") if hasattr(gateway, name)]
        before = {name: getattr(gateway, name) for name in names}
        old_store = None if self._has_travelled else gateway.get_store()
        gateway.set_store(store)
        gateway.name = f"{gateway.name}-{self._run_name}"
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

    async def _last_address(self, store: LightningStore) -> str | None:
        """Return where the gateway of this run was."""
        if self._place.exists():
            return str(read_json(self._place, kind=dict)["address"])
        worker = await store.get_worker_by_id(f"gateway-of-{self._run_name}")  # where version 0.1 kept it
        return None if worker is None else (worker.heartbeat_stats or {}).get("address")

    async def _start(self, before: str | None) -> None:
        """Start it where it was before, so that rollouts which wait still find it; several times if its process ends
        in its start, as those of the store and of runners."""
        gateway = self._gateway
        is_near = before is not None and gateway.port is None
        if is_near:
            gateway.port = urlsplit(before).port
        for pause in (*START_PAUSES, None):
            try:
                await gateway.start()
                break
            except PortTakenError:
                if not is_near or pause is None:
                    raise
                log.warning("the port of this run's gateway, %d, is in use; using another one", gateway.port)
                gateway.port, is_near = None, False
            except RunError as error:
                if pause is None:
                    raise
                log.warning("the gateway did not start; retrying in %g s: %s", pause, error)
                await asyncio.sleep(pause)

    async def _settle(self, store: LightningStore, before: str | None) -> None:
        """Before any runner begins, whoever waits has its address, and calls are held if they are to be."""
        self.own_address = address(self._gateway.host, self._gateway.port)
        if before is not None and before != self.own_address:
            await move_endpoint(store, before, self.own_address)
        with FullDisk("the address of the gateway").tolerated(self._place.parent):
            write_json(self._place, {"address": self.own_address})
        if self._holds_calls and hasattr(self._gateway, "pause"):
            await self._gateway.pause()

    # -- when it dies --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """It is restarted when it dies; when it has died for good, the block is cancelled, and the error raised.

        A thread watches, since an algorithm may keep its event loop busy for long. A restart under way at the end
        continues: whoever stops the gateway next waits for it.
        """
        task, loop, is_over = asyncio.current_task(), asyncio.get_running_loop(), threading.Event()
        assert task is not None
        error: RunError | None = None

        def watch() -> None:
            nonlocal error
            while not is_over.wait(LOOK_SECONDS * 5) and error is None:
                error = self._bring_back(is_over) if self._gateway.has_died() else None
            if error is not None and not is_over.is_set():
                log.error("%s", error)
                loop.call_soon_threadsafe(lambda: is_over.is_set() or task.cancel())

        if hasattr(self._gateway, "revive_sync"):
            threading.Thread(target=watch, name="sharpen-gateway-watch", daemon=True).start()
        try:
            yield
        except asyncio.CancelledError:
            if error is None or task.uncancel():  # somebody else wants the end, too
                raise
            raise error from None
        finally:
            is_over.set()

    def _bring_back(self, is_over: threading.Event) -> RunError | None:
        """Restart it at its address; return an error when that does not work. One that was stopped stays so."""
        before, self.notice = self.notice, "the gateway is down"
        died, reason = time.monotonic(), "it kept dying"
        if died > self._steady_at:
            self._tries = 0
        for pause in RESTART_PAUSES[self._tries :]:
            self._tries += 1
            when = f", in {pause:g} s" if pause else ""
            log.warning("the gateway of this run died: restart %d of %d%s", self._tries, len(RESTART_PAUSES), when)
            if is_over.wait(pause):
                return None
            try:
                if not self._gateway.revive_sync():
                    self.notice = before
                    return None
            except Exception as error:  # noqa: BLE001 - whatever it was, it is retried, and reported at the end
                reason = describe(error)
                log.warning("could not start the gateway of this run: %s", reason)
                continue
            self._restarts, now = self._restarts + 1, time.monotonic()
            self._steady_at = now + STEADY_SECONDS
            self.notice = f"the gateway was restarted {'once' if self._restarts == 1 else f'{self._restarts} times'}"
            log.warning("the gateway of this run is responding again, %.1f s after it died", now - died)
            return None
        return RunError(
            f"the gateway of this run died and did not come back after {self._tries} restarts ({reason}): see its "
            "output on standard error; fit(..., resume='last') resumes the run"
        )

    # -- what agents are given -----------------------------------------------------------------------

    def add_to(self, resources: NamedResources | None, *, needs_llm: bool = False) -> NamedResources | None:
        """Return the first resources of the run: with the gateway as `main_llm` where they hold no LLM.

        `needs_llm` says that the agent asks for one, and that nobody else will publish it.
        """
        given, gateway = resources or {}, self._gateway
        if gateway is None or any(isinstance(each, LLM) for each in given.values()):
            return resources
        if MAIN_LLM in given:
            raise ConfigError(f"initial_resources[{MAIN_LLM!r}] is not an LLM: use another name for it")
        names = getattr(gateway, "model_names", None)
        if names is None:
            return {**given, MAIN_LLM: gateway.as_resource()}
        plain = [name for name in names if "*" not in name]
        if len(plain) > 1:
            log.info("%s uses %r, the first model of the gateway", MAIN_LLM, plain[0])
        if plain:
            return {**given, MAIN_LLM: gateway.as_resource(model=plain[0])}
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


async def _end_runners(event: RunEvent | None) -> None:
    """Wait until agents make no more calls, where the strategy can tell. How long that takes is up to the strategy."""
    if event is None:
        return
    event.end_runners()
    while not event.have_runners_ended():
        # The end has been asked for: asking again must not leave the agents without their gateway.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(LOOK_SECONDS)


async def move_endpoint(store: LightningStore, old: str, new: str) -> None:
    """Give every rollout that is not finished its own resources again, with the new address of the gateway in them.

    They are a version of the same resources where that undoes nothing newer, and otherwise resources with an id of
    their own. The latest resources stay the latest.
    """
    latest = await store.get_latest_resources()
    if latest is None:
        return
    waiting: dict[tuple[str, int], list[str]] = {}
    for rollout in await store.query_rollouts(status_in=[each for each in ROLLOUT_STATUSES if each not in FINISHED]):
        if rollout.resources_id is not None and rollout.resources_version is not None:
            waiting.setdefault((rollout.resources_id, rollout.resources_version), []).append(rollout.rollout_id)
    last = latest.resources_id, latest.version
    waiting[last] = waiting.pop(last, [])  # at the end, so that it is the latest again
    published, is_latest = None, True
    for (resources_id, version), rollout_ids in waiting.items():
        found = await store.get_resources_by_id(resources_id, version)
        newest = await store.get_resources_by_id(resources_id)
        resources = {} if found is None else moved(found.resources, old, new)
        if found is None or newest is None or resources == found.resources:
            is_latest = False
            continue
        if newest.version == version:
            published = await store.update_resources(resources_id, resources)
        else:
            published = await store.add_resources(resources)
        is_latest = True
        for rollout_id in rollout_ids:
            await store.update_rollout(rollout_id, resources_id=published.resources_id)
    if published is not None and not is_latest:
        await store.update_resources(latest.resources_id, latest.resources)
