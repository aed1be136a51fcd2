"""Where a gateway works: in a thread of this process, or in a process of its own."""

import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, Protocol, cast

import msgspec

from ...errors import ConfigError
from ...store import LightningStore
from ...store.opening import address_of
from ...web.serving import listen
from ..recording.redaction import Redact
from ..settings import GatewaySettings
from .orders import Answer, Order
from .store_address import StoreServing, check_thread_safe

LaunchMode = Literal["thread", "process", "mp"]
Hook = Callable[..., Any]


class RunningGateway(Protocol):
    """A gateway that has been started, wherever it works. Its methods may be called from any thread."""

    port: int

    @property
    def pid(self) -> int:
        """The process that it works in."""

    @property
    def last(self) -> Answer | None:
        """How things stood when it ended, where that is known."""

    def is_alive(self) -> bool: ...

    def ask(self, order: Order) -> "Future[Answer]":
        """Give an order. The answer does not depend on the caller's event loop."""

    def stop(self) -> Answer | None:
        """End in order, within a bounded time; how things stood then, where that is known."""


def check_launch_mode(mode: object) -> None:
    if mode not in (None, "thread", "process", "mp"):
        raise ConfigError(f"launch_mode is {mode!r}: use 'thread', 'process' (or 'mp'), or None to choose by the store")


def is_own_process(mode: LaunchMode | None, store: LightningStore | None, redact: Hook | None) -> bool:
    """A store in this memory, or a hook that only this process knows, is best used from here."""
    if mode is not None:
        return mode != "thread"
    is_reachable = store is not None and address_of(store) is not None
    return is_reachable and (redact is None or path_of(redact) is not None)


def launch(
    settings: GatewaySettings,
    *,
    port: int | None,
    store: LightningStore | None,
    redact: Hook | None,
    mode: LaunchMode | None,
) -> RunningGateway:
    """Start a gateway that answers when this returns. A taken port is an error here, before anything starts."""
    if is_own_process(mode, store, redact):
        return _launch_process(_with_hook(settings, redact), port, store)
    return _launch_thread(settings, port, store, redact)


def _launch_thread(
    settings: GatewaySettings, port: int | None, store: LightningStore | None, redact: Hook | None
) -> RunningGateway:
    from .own_thread import ThreadGateway

    if store is not None:
        check_thread_safe(store)
    return ThreadGateway(settings, listen(settings.host, port or 0), store, cast("Redact | None", redact))


def _launch_process(settings: GatewaySettings, port: int | None, store: LightningStore | None) -> RunningGateway:
    from .own_process import ProcessGateway
    from .wire import Job

    with listen(settings.host, port or 0) as bound:
        address = None if store is None else address_of(store)
        serving = StoreServing(store) if store is not None and address is None else None
        job = Job(settings, serving.address if serving is not None else address, bound.fileno())
        try:
            return ProcessGateway(job, bound, serving)
        except BaseException:
            if serving is not None:
                serving.close()
            raise


def _with_hook(settings: GatewaySettings, redact: Hook | None) -> GatewaySettings:
    if redact is None:
        return settings
    path = path_of(redact)
    if path is None:
        raise ConfigError(
            f"redact is {redact!r}, which another process cannot import: move it to a module, or use "
            "launch_mode='thread'"
        )
    return msgspec.structs.replace(settings, redact=path)


def path_of(hook: Hook) -> str | None:
    """The import path of a function; None where another process would not find it there."""
    module, name = getattr(hook, "__module__", None), getattr(hook, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    return f"{module}.{name}" if getattr(sys.modules.get(module), name, None) is hook else None
