"""A gateway put together from its parts, in the event loop that will serve it, and taken apart at its end."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

from ...errors import ConfigError, StoreUnavailableError
from ...store import LightningStore
from ...web.serving import allowed_hosts, serving
from ..application import GatewayApplication
from ..attribution import Attempts
from ..bookkeeping import Books
from ..budgets.budget import Budget
from ..budgets.prices import Prices
from ..gateway import Gateway
from ..models.model_list import parse_model_list, warn_of_missing_keys
from ..options import GatewayOptions
from ..pausing import Gate
from ..recorder import Recorder
from ..recording.record import RecordFile
from ..recording.redaction import Redact, Redaction
from ..recording.replay import Replay
from ..retries import Choice, Only
from ..settings import GatewaySettings
from ..upstreams.pool import Upstreams
from .orders import Answer, Drain, Order, Pause, Resume, SetModels

STORE_SECONDS = 20.0  # for the store to say what was spent before
FLUSH_SECONDS = 8.0  # at the end, for spans that the store has not taken yet


class Service:
    """A gateway at work, and the orders that it takes. It belongs to one event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.app = GatewayApplication(gateway)

    async def serve(self, bound: socket.socket, ready: Callable[[], object], stopping: asyncio.Event) -> None:
        """Answer on a listening socket until `stopping` is set, and calls under way have ended."""
        async with serving(self.app, bound):
            ready()
            await stopping.wait()
            self.gateway.gate.close()

    async def obey(self, order: Order) -> Answer:
        """Carry out an order; how things stand then."""
        gate = self.gateway.gate
        match order:
            case Pause():
                gate.pause()
            case Resume():
                gate.resume()
            case Drain(timeout):
                await gate.drain(timeout)
            case SetModels(model_list):
                self._set_models(model_list)
        return self.look()

    def look(self) -> Answer:
        """How things stand."""
        return Answer(self.gateway.gate.in_flight, self.gateway.totals(), self.gateway.gate.waiting)

    def _set_models(self, model_list: list[dict[str, object]]) -> None:
        choice = self.gateway.choice
        if isinstance(choice, Upstreams):  # a replay answers for whatever was recorded
            entries = parse_model_list(model_list)
            choice.replace(entries)
            warn_of_missing_keys(entries)


@contextlib.asynccontextmanager
async def assembled(
    settings: GatewaySettings, store: LightningStore | None, *, redact: Redact | None = None
) -> AsyncIterator[Service]:
    """A gateway as long as the block lasts; then what is left is written down."""
    check_memory(settings, store)
    async with contextlib.AsyncExitStack() as stack:
        redaction = Redaction(redact or settings.redact)
        budget = await _budget(settings, store)
        record = _record(settings, stack)
        choice = await _choice(settings, store)
        stack.push_async_callback(choice.aclose)
        attempts = None if store is None else Attempts(store, strict=settings.strict)
        # Without a store no call belongs to an attempt, so nothing is ever given to the recorder.
        recorder = Recorder(store or LightningStore(), heard=None if attempts is None else attempts.heard)
        books = Books(
            budget,
            recorder,
            choice,
            capture_content=settings.capture_content,
            redaction=redaction if redaction else None,
            record=record,
            keeps_exchanges=settings.mode == "record",
        )
        gate = Gate(when_paused=settings.when_paused, pause_wait_seconds=settings.pause_wait_seconds)
        gateway = Gateway(choice=choice, books=books, attempts=attempts, gate=gate, options=_options(settings))
        stack.push_async_callback(gateway.aclose)
        stack.push_async_callback(recorder.aclose, FLUSH_SECONDS)
        yield Service(gateway)


def check_memory(settings: GatewaySettings, store: LightningStore | None) -> None:
    """Whoever records needs somewhere to write, whoever replays something to read."""
    if store is not None or settings.record is not None:
        return
    if settings.mode == "record":
        raise ConfigError("mode is 'record', but there is nowhere to write to: pass record=PATH or a store")
    if settings.mode == "replay":
        raise ConfigError(
            f"replay_rollout is {settings.replay_rollout!r}, but there is no record to replay: pass the store that "
            "contains the rollout, or record=PATH"
        )


async def _budget(settings: GatewaySettings, store: LightningStore | None) -> Budget:
    prices = None if settings.mode == "replay" else Prices(settings.prices)
    budget = Budget(settings.limits, prices, store, name=settings.name, instance=settings.instance)
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await budget.restore()
    except TimeoutError:
        raise StoreUnavailableError(f"the store of the gateway did not respond within {STORE_SECONDS:g} s") from None
    return budget


def _record(settings: GatewaySettings, stack: contextlib.AsyncExitStack) -> RecordFile | None:
    if settings.mode != "record" or settings.record is None:
        return None
    return stack.enter_context(RecordFile(settings.record))


async def _choice(settings: GatewaySettings, store: LightningStore | None) -> Choice:
    if settings.mode != "replay":
        entries = parse_model_list(settings.model_list)
        warn_of_missing_keys(entries)
        return Upstreams(
            entries,
            num_retries=settings.num_retries,
            passes_keys=settings.token is None or settings.open_attempts,
            timeout_seconds=settings.timeout,
            connect_seconds=settings.connect_timeout,
        )
    if settings.record is not None:
        return Only(Replay(settings.record, settings.replay_rollout))
    assert store is not None
    assert settings.replay_rollout is not None
    return Only(await Replay.of_rollout(store, settings.replay_rollout))


def _options(settings: GatewaySettings) -> GatewayOptions:
    return GatewayOptions(
        timeout_seconds=settings.timeout,
        first_byte_seconds=settings.first_byte_timeout,
        chunk_seconds=settings.chunk_timeout,
        # A recorded failure is an answer too: asking again would use up those of the calls that follow.
        num_retries=0 if settings.mode == "replay" else settings.num_retries,
        token=settings.token,
        open_attempts=settings.open_attempts,
        hosts=allowed_hosts(settings.host),
        max_body_bytes=settings.max_body_bytes,
    )
