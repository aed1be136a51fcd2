"""A dashboard over a store in memory, served in a thread for a real browser."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import Page

from sharpen.store import InMemoryLightningStore, LightningStore
from tests.dashboard.internals import StoreSource, serve_dashboard
from tests.web.internals import address, listen

T = TypeVar("T")
EDIT_TOKEN = "edit-for-tests"


class ServedStore:
    """The store, its address, and a way to work on it from the test."""

    def __init__(self, run_path: Path | None) -> None:
        self.store: LightningStore = InMemoryLightningStore()
        self._run_path = run_path
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._ready = threading.Event()
        self._bound = listen("127.0.0.1", 0)
        self.url = address("127.0.0.1", self._bound.getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    async def _serve(self) -> None:
        source = StoreSource(self.store, "lab", self._run_path)
        given = {"ready": self._ready.set, "stopping": self._stopping}
        await serve_dashboard(source, self._bound, edit_token=EDIT_TOKEN, **given)  # type: ignore[arg-type]
        await self.store.close()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(20)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(20)
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop of the server."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


@contextmanager
def served_store(run_path: Path | None = None) -> Iterator[ServedStore]:
    served = ServedStore(run_path)
    served.start()
    try:
        yield served
    finally:
        served.stop()


class Complaints(list[str]):
    """What the browser complained about: refused scripts and styles, errors in scripts, failed requests."""

    @classmethod
    def of(cls, page: Page) -> "Complaints":
        found = cls()
        page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: found.append(str(error)))
        return found
