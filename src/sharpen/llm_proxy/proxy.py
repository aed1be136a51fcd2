"""`LLMProxy`: the gateway as its user holds it, from any thread and any event loop.

Invariants:
- nothing is process-wide: several gateways stand side by side in one process;
- a gateway works in a loop of its own, so the plain methods may be called inside a running loop too;
- what fails at the start leaves nothing running.
"""

import asyncio
import inspect
import logging
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import msgspec

from ..errors import ConfigError, RunError
from ..secrets import shown
from ..store import LightningStore
from ..store.opening import StoreAddress, address_of
from ..types import LLM, ProxyLLM
from ..web.serving import address
from .budgets.budget import Limits, Totals
from .models.model_choice import choose_model, names_of
from .models.model_list import parse_model_list
from .recording.redaction import Redaction
from .removed import refuse_unknown_arguments
from .serving.launching import Hook, LaunchMode, RunningGateway, check_launch_mode, launch
from .serving.orders import Answer, Drain, Look, Order, Pause, Resume, SetModels
from .serving.store_address import check_store, is_same_store
from .serving.threads import in_thread
from .settings import (
    DEFAULT_HOST,
    EVERYWHERE,
    MAX_BODY_BYTES,
    Mode,
    WhenPaused,
    check_port,
    check_reach,
    make_settings,
    plain_prices,
    plain_record,
)
from .tokens import is_reference, resolve_token

ModelList = Sequence[Mapping[str, Any]]
ANSWER_SECONDS = 30.0
log = logging.getLogger(__name__)


class LLMProxy:
    """An OpenAI-compatible proxy between agents and models that records every call in the store.

        gateway = LLMProxy(model_list=[{"name": "qwen", "base_url": "http://127.0.0.1:8000/v1"}], store=store)
        await gateway.start()
        resources = {"main_llm": gateway.as_resource()}

    Args:
        port: The port to bind, or None for a free one.
        model_list: The models and their upstreams, as in the example or in LiteLLM's form.
        store: The store that calls are recorded in.
        host: The address to bind (default: 127.0.0.1). Other than on loopback, a token is required.
        num_retries: How often to retry a failed call.
        launch_mode: `"thread"` or `"process"`. None chooses a thread for a store in the memory of this process and
            a process otherwise.
        token: The token that callers must send. `"env:NAME"` reads it from a variable and keeps it out of files.
        strict: Whether to refuse calls of attempts that the store does not know or that have ended.
        mode: `"live"`; `"record"` also saves the raw exchanges; `"replay"` responds from saved ones.
        record: The file to record to or to replay from.
        replay_rollout: The rollout whose calls are replayed.
        limits: What a rollout and the whole run may spend.
        prices: US dollars per million tokens by model, as `(input, output)` or `(input, output, cached input)`.
        when_paused: Whether calls `"wait"` while the gateway is paused, or are refused (`"refuse"`).
        pause_wait_seconds: How long a call waits while the gateway is paused.
        redact: A function of the attributes of a span, or its import path; returns those that may be stored.
        capture_content: Whether to store messages and token ids.
        max_body_bytes: The maximum size of a request body.
        timeout: The maximum duration of a call in seconds.
        connect_timeout: The maximum time to connect to an upstream.
        first_byte_timeout: The maximum time until a response begins, or None.
        chunk_timeout: The maximum time between two parts of a response, or None.
        name: The name for logs, and for the totals in the store.
    """

    def __init__(
        self,
        port: int | None = None,
        model_list: ModelList | None = None,
        store: LightningStore | None = None,
        host: str | None = None,
        num_retries: int = 0,
        *,
        launch_mode: LaunchMode | None = None,
        token: str | None = None,
        strict: bool = True,
        mode: Mode = "live",
        record: str | os.PathLike[str] | None = None,
        replay_rollout: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        prices: Mapping[str, Any] | None = None,
        when_paused: WhenPaused = "wait",
        pause_wait_seconds: float = 600.0,
        redact: Hook | str | None = None,
        capture_content: bool = True,
        max_body_bytes: int = MAX_BODY_BYTES,
        timeout: float = 600.0,
        connect_timeout: float = 10.0,
        first_byte_timeout: float | None = None,
        chunk_timeout: float | None = None,
        name: str = "gateway",
        **others: Any,
    ) -> None:
        refuse_unknown_arguments(others, known=list(inspect.signature(LLMProxy).parameters)[:-1] if others else ())
        check_port(port)
        check_launch_mode(launch_mode)
        check_store(store)
        models = () if model_list is None else model_list
        self._entries = parse_model_list(models)
        self._settings = make_settings(
            {
                "name": name,
                "host": DEFAULT_HOST if host is None else host,
                "token": None if is_reference(token) else token,
                "model_list": [dict(each) for each in models],
                "num_retries": num_retries,
                "strict": strict,
                "mode": mode,
                "record": plain_record(record),
                "replay_rollout": replay_rollout,
                "limits": Limits.of(limits),
                "prices": plain_prices(prices),
                "when_paused": when_paused,
                "pause_wait_seconds": pause_wait_seconds,
                "redact": redact if isinstance(redact, str) else None,
                "capture_content": capture_content,
                "max_body_bytes": max_body_bytes,
                "timeout": timeout,
                "connect_timeout": connect_timeout,
                "first_byte_timeout": first_byte_timeout,
                "chunk_timeout": chunk_timeout,
            }
        )
        check_reach(self._settings.host, token)
        self._token, self._redact = token, None if isinstance(redact, str) else redact
        Redaction(self._redact)
        self._fixed_port, self._launch_mode = port, launch_mode
        self._store: LightningStore | None = store
        self._run_token: str | None = None
        self._set_off()

    def _set_off(self) -> None:
        """What a gateway holds only in the process that it was made or unpickled in."""
        self._lock = threading.RLock()
        self._running: RunningGateway | None = None
        self._last: Answer | None = None
        self._is_paused = False
        self._instance = secrets.token_hex(8)
        self._address: StoreAddress | None = None
        """Of a store that was opened here, and is closed when the gateway stops."""

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name for logs, and for the totals in the store."""
        return self._settings.name

    @name.setter
    def name(self, name: str) -> None:
        """Takes effect at the next start."""
        if self.is_running():
            raise ConfigError(f"the gateway {self.name!r} is running: call stop() first")
        self._settings = make_settings(msgspec.structs.asdict(self._settings) | {"name": name})

    @property
    def host(self) -> str:
        return self._settings.host

    @property
    def reach(self) -> tuple[str, str | None]:
        """The address it binds, and its token as given."""
        return self.host, self._token

    @reach.setter
    def reach(self, reach: tuple[str, str | None]) -> None:
        """Takes effect at the next start."""
        if self.is_running():
            raise ConfigError(f"the gateway {self.name!r} is running on {self.host}: call stop() first")
        host, token = reach
        literal = None if is_reference(token) else token
        settings = make_settings(msgspec.structs.asdict(self._settings) | {"host": host, "token": literal})
        check_reach(host, token)
        self._settings, self._token = settings, token

    @property
    def run_token(self) -> str | None:
        """The token of the run that started the gateway, if it has no other.

        Calls that are not under the URL of an open attempt need it.
        """
        return self._run_token if self._token is None else None

    @run_token.setter
    def run_token(self, token: str | None) -> None:
        """Takes effect at the next start."""
        self._run_token = token

    @property
    def port(self) -> int | None:
        """The port, or None until a free one has been chosen."""
        running = self._running
        return self._fixed_port if running is None else running.port

    @port.setter
    def port(self, port: int | None) -> None:
        """Takes effect at the next start; None chooses a free port."""
        check_port(port)
        if self.is_running():
            raise ConfigError(f"the gateway {self.name!r} is running on port {self.port}: call stop() first")
        self._fixed_port = port

    @property
    def pid(self) -> int | None:
        """The id of the process that the gateway runs in, while it is running."""
        running = self._running
        return running.pid if running is not None and running.is_alive() else None

    @property
    def model_names(self) -> list[str]:
        """The model names that agents can use; "*" stands for any."""
        return names_of(self._entries)

    @property
    def model_list(self) -> list[dict[str, Any]]:
        """The current model list, as given."""
        return [dict(each) for each in self._settings.model_list]

    @property
    def needs_token(self) -> bool:
        """Whether callers must send a token."""
        return self._token is not None

    @property
    def hides_content(self) -> bool:
        """Whether some content of calls is not stored."""
        return not self._settings.capture_content or self._settings.redact is not None or self._redact is not None

    def is_running(self) -> bool:
        """Return True if the gateway is running; False also after its process died."""
        running = self._running
        return running is not None and running.is_alive()

    def has_died(self) -> bool:
        """Return True if the gateway ended without being stopped."""
        running = self._running
        return running is not None and not running.is_alive()

    def get_store(self) -> LightningStore | None:
        """Return the store that calls are recorded in."""
        if isinstance(self._store, StoreAddress):
            self._address, self._store = self._store, self._store.open()
        return self._store

    def _close_opened(self) -> None:
        """Of a store that was opened here only the address is kept; the next start opens it again."""
        opened, address = self._store, self._address
        if address is not None and opened is not None:
            self._store, self._address = address, None  # type: ignore[assignment]
            in_thread(lambda: asyncio.run(opened.close())).result()

    def set_store(self, store: LightningStore | None) -> None:
        """Use this store from the next start."""
        check_store(store)
        if self.is_running() and not is_same_store(self.get_store(), store):
            raise ConfigError(f"the gateway {self.name!r} is running with another store: call stop() first")
        if self._address is not None and store is not self._store:
            self._close_opened()
        self._store, self._lost_store, self._address = store, None, None

    _has_warned = False
    _lost_store: str | None = None
    """The kind of the store that could not come along to this process."""

    def __repr__(self) -> str:
        state = "running" if self.is_running() else "not running"
        port = "a free port" if self.port is None else f"port {self.port}"
        return f"<LLMProxy {self.name!r} on {self.host}, {port}, models {self.model_names}, {state}>"

    # -- life ----------------------------------------------------------------------------------------

    def start_sync(self) -> None:
        """Start the gateway and wait until it accepts calls. A running one is not changed."""
        with self._lock:
            if not self.is_running():
                self._begin(self._fixed_port)

    def stop_sync(self) -> None:
        """Let calls in progress finish for a short time, write pending data and release the port."""
        with self._lock:
            running, self._running = self._running, None
            if running is not None:
                self._last = running.stop() or self._last
            self._close_opened()

    def restart_sync(self) -> None:
        """Restart on the same port, also after its process has died."""
        with self._lock:
            port = self.port
            self.stop_sync()
            self._begin(port)

    def revive_sync(self) -> bool:
        """Restart the gateway if it has died, on the same port and paused if it was; return False if it has not died.

        It can be called again after an error.
        """
        with self._lock:
            dead, is_paused = self._running, self._is_paused
            if dead is None or dead.is_alive():
                return False
            try:
                self.restart_sync()
            except BaseException:
                self._running, self._is_paused = dead, is_paused  # which still know what there is to bring back
                raise
            if is_paused:
                self.pause_sync()
            return True

    def _begin(self, port: int | None) -> None:
        self.stop_sync()  # what is left of one that has died
        self._is_paused = False
        if self._lost_store is not None:
            raise ConfigError(
                f"the store of the gateway {self.name!r}, {self._lost_store}, is in the memory of another process: "
                "call set_store() before start()"
            )
        settings = msgspec.structs.replace(
            self._settings,
            token=resolve_token(self._token) or self.run_token,
            open_attempts=self.run_token is not None,
            instance=self._instance,
        )
        try:
            store = self.get_store()
            self._running = launch(settings, port=port, store=store, redact=self._redact, mode=self._launch_mode)
        except BaseException:
            self._close_opened()
            raise

    def _warn_of_reach(self) -> None:
        if self.host in EVERYWHERE and not self._has_warned:
            self._has_warned = True
            log.warning(
                "the gateway %r listens on all addresses, but its URLs for agents, %s, only work on this machine: for "
                "agents elsewhere, set host= to the name or address at which they reach it",
                self.name,
                address(self.host, self.port or 0),
            )

    async def start(self) -> None:
        """Start the gateway and wait until it accepts calls. A running one is not changed."""
        if self.is_running():
            return
        starting = in_thread(self.start_sync)
        try:
            await asyncio.wrap_future(starting)
        except asyncio.CancelledError:
            await asyncio.wrap_future(in_thread(lambda: self._undo(starting)))
            raise

    def _undo(self, starting: "Future[None]") -> None:
        wait([starting])
        self.stop_sync()

    async def stop(self) -> None:
        """Let calls in progress finish for a short time, write pending data and release the port."""
        await asyncio.wrap_future(in_thread(self.stop_sync))

    async def restart(self) -> None:
        """Restart on the same port, also after its process has died."""
        await asyncio.wrap_future(in_thread(self.restart_sync))

    def __enter__(self) -> "LLMProxy":
        self.start_sync()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_sync()

    async def __aenter__(self) -> "LLMProxy":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- orders --------------------------------------------------------------------------------------

    async def pause(self) -> int:
        """Hold back new calls; return how many are in progress."""
        return (await self._ask(Pause())).in_flight

    async def resume(self) -> int:
        """Let calls through again; return how many are in progress."""
        return (await self._ask(Resume())).in_flight

    async def drain(self, timeout: float | None = None) -> int:
        """Wait until no call is in progress or the time is up; return how many are left. Call `pause` first."""
        return (await self._ask(Drain(timeout))).in_flight

    async def totals(self) -> Totals:
        """Return what was called, refused and spent; after `stop`, the final values."""
        return (await self._ask(Look())).totals if self.is_running() else self._last_totals()

    async def open_calls(self) -> tuple[int, int]:
        """Return how many calls are in progress, and how many wait because the gateway is paused."""
        if not self.is_running():
            return 0, 0
        found = await self._ask(Look())
        return found.in_flight, found.waiting

    def pause_sync(self) -> int:
        """Hold back new calls; return how many are in progress."""
        return self._ask_sync(Pause()).in_flight

    def resume_sync(self) -> int:
        """Let calls through again; return how many are in progress."""
        return self._ask_sync(Resume()).in_flight

    def drain_sync(self, timeout: float | None = None) -> int:
        """Wait until no call is in progress or the time is up; return how many are left. Call `pause` first."""
        return self._ask_sync(Drain(timeout)).in_flight

    def totals_sync(self) -> Totals:
        """Return what was called, refused and spent; after `stop`, the final values."""
        return self._ask_sync(Look()).totals if self.is_running() else self._last_totals()

    def update_model_list(self, model_list: ModelList) -> None:
        """Use other models from the next call; calls in progress are not changed."""
        entries = parse_model_list(model_list)
        models = [dict(each) for each in model_list]
        settings = make_settings(msgspec.structs.asdict(self._settings) | {"model_list": models})
        with self._lock:
            if self.is_running():
                self._ask_sync(SetModels(models))
            self._settings, self._entries = settings, entries

    def _last_totals(self) -> Totals:
        last = (self._running.last if self._running is not None else None) or self._last
        return Totals() if last is None else last.totals

    def _given(self, order: Order) -> "Future[Answer]":
        running = self._running
        if running is None:
            raise RunError(f"the gateway {self.name!r} is not running: call start() first")
        if isinstance(order, Pause | Resume):
            self._is_paused = isinstance(order, Pause)
        return running.ask(order)

    def _ask_sync(self, order: Order) -> Answer:
        seconds = _seconds_for(order)
        try:
            self._last = self._given(order).result(seconds)
        except CancelledError:
            raise self._ended() from None
        except TimeoutError:
            raise self._silent(seconds) from None
        return self._last

    async def _ask(self, order: Order) -> Answer:
        seconds = _seconds_for(order)
        try:
            async with asyncio.timeout(seconds):
                self._last = await asyncio.wrap_future(self._given(order))
        except TimeoutError:
            raise self._silent(seconds) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._ended() from None
        return self._last

    def _silent(self, seconds: float | None) -> RunError:
        return RunError(f"the gateway {self.name!r} did not respond within {seconds:g} s")

    def _ended(self) -> RunError:
        return RunError(f"the gateway {self.name!r} was stopped during the call")

    # -- what agents are given -----------------------------------------------------------------------

    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: Mapping[str, Any] | None = None,
    ) -> LLM:
        """Return the endpoint for agents, bound to an attempt if its ids are given, otherwise by each rollout."""
        if (rollout_id is None) != (attempt_id is None):
            raise ConfigError(f"rollout_id is {rollout_id!r} and attempt_id is {attempt_id!r}: pass both or neither")
        for name, value in (("rollout_id", rollout_id), ("attempt_id", attempt_id)):
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"{name} is {value!r}: pass the id from the store, a string")
        if sampling_parameters is not None and not isinstance(sampling_parameters, Mapping):
            raise ConfigError(
                f"sampling_parameters is {shown(sampling_parameters)}: pass a dict such as {{'temperature': 0.7}}"
            )
        if self.port is None:
            raise ConfigError(f"the gateway {self.name!r} has no port yet: call start() first, or pass port=")
        chosen = choose_model(model, self._entries)
        self._warn_of_reach()
        # Anthropic's clients add another /v1, which the gateway takes for the same.
        endpoint = f"{address(self.host, self.port)}/v1"
        found = ProxyLLM(endpoint, chosen, self._token, dict(sampling_parameters or {}))
        if rollout_id is None:
            return found
        return LLM(found.get_base_url(rollout_id, attempt_id), chosen, found.api_key, found.sampling_parameters)

    # -- travelling ----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if self.is_running():
            raise ConfigError(
                f"the gateway {self.name!r} is running, and a running server cannot be pickled: call stop() first, or "
                "pickle as_resource(), which is all that agents need"
            )
        local = ("_lock", "_running", "_last", "_is_paused", "_instance", "_address", "_store", "_lost_store")
        state = {name: value for name, value in self.__dict__.items() if name not in local}
        store = self._store
        found = store if store is None or isinstance(store, StoreAddress) else address_of(store)
        lost = self._lost_store if store is None else type(store).__name__ if found is None else None
        return {**state, "_store": found, "_lost_store": lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_off()


def _seconds_for(order: Order) -> float | None:
    """A drain may take as long as it was given, and then some for the answer."""
    if isinstance(order, Drain):
        return None if order.timeout is None else order.timeout + ANSWER_SECONDS
    return ANSWER_SECONDS
