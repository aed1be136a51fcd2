"""Sources of runs: a folder of runs, one run or store file, or a store that is already open.

Files are opened read-only. A store stays open between requests; it is closed when it has not been used for a while and
others are, or at the end.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from ..archive.catalog import RunCatalog, RunEntry
from ..errors import StoreFileError, UnknownIdError, describe
from ..store import LightningStore
from ..store.sqlite import SQLiteStore

MAX_OPEN = 16
UNUSED_SECONDS = 120.0
LIST_SECONDS = 1.0


class Source(Protocol):
    """Runs by name. `runs` and `entry` read files, so they are called in a thread."""

    @property
    def is_single(self) -> bool:
        """Whether there is only one run, so that no list of runs is needed."""

    @property
    def label(self) -> str:
        """The name of the source on the pages."""

    def runs(self) -> list[RunEntry]:
        """Return all runs, the newest first."""

    def entry(self, name: str) -> RunEntry:
        """Return one run; raise `UnknownIdError` if there is none of this name."""

    async def store(self, name: str) -> LightningStore:
        """Return the opened store of a run; raise `UnknownIdError` if it has none."""

    def in_use(self, store: LightningStore) -> AbstractAsyncContextManager[None]:
        """Keep a store open inside the block, however long it takes."""

    def metrics_path(self, name: str) -> Path | None:
        """Return the metrics file of a run, if it has one."""

    async def close(self) -> None:
        """Close the stores that were opened here."""


class _FileSource:
    """Runs that are files: their stores are opened here."""

    def __init__(self) -> None:
        self._stores = _OpenStores()

    def entry(self, name: str) -> RunEntry:
        raise NotImplementedError

    async def store(self, name: str) -> LightningStore:
        return await self._stores.get(await asyncio.to_thread(self.entry, name))

    def in_use(self, store: LightningStore) -> AbstractAsyncContextManager[None]:
        return self._stores.in_use(store)

    def metrics_path(self, name: str) -> Path | None:
        return self.entry(name).metrics_path

    async def close(self) -> None:
        await self._stores.close()


class RunsSource(_FileSource):
    """All runs below a folder."""

    is_single = False

    def __init__(self, root: Path | None = None) -> None:
        super().__init__()
        self._catalog = RunCatalog(root)
        self._listed: tuple[float, list[RunEntry]] = (0.0, [])

    @property
    def label(self) -> str:
        return str(self._catalog.root.absolute())

    def runs(self) -> list[RunEntry]:
        # Many viewers may look at one list; it is read once a second for all of them.
        read_at, entries = self._listed
        if time.monotonic() - read_at > LIST_SECONDS:
            entries = self._catalog.entries()
            self._listed = time.monotonic(), entries
        return entries

    def entry(self, name: str) -> RunEntry:
        return self._catalog.named(name)


class RunSource(_FileSource):
    """One run folder, or one store file."""

    is_single = True

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._name = RunEntry.of(path).name

    @property
    def label(self) -> str:
        return str(self._path.absolute())

    def runs(self) -> list[RunEntry]:
        return [RunEntry.of(self._path)]

    def entry(self, name: str) -> RunEntry:
        _check_name(name, self._name)
        return RunEntry.of(self._path)


class StoreSource:
    """A store that others open and close, and the folder of its run if there is one."""

    is_single = True

    def __init__(self, store: LightningStore, name: str, run_path: Path | None = None) -> None:
        self._store, self._run_path = store, run_path
        self._name = name.replace("/", "-") or "store"  # it becomes one segment of a URL

    @property
    def label(self) -> str:
        return self._name

    def runs(self) -> list[RunEntry]:
        return [self.entry(self._name)]

    def entry(self, name: str) -> RunEntry:
        _check_name(name, self._name)
        try:
            found = None if self._run_path is None else RunEntry.of(self._run_path)
        except UnknownIdError:
            found = None  # a run that has just started has written nothing yet
        if found is None:
            # Without a folder there are no files; those of the working directory must not be shown: see `has_files`.
            return RunEntry(self._name, self._run_path or Path(), "store", "running", has_store=True)
        return msgspec.structs.replace(found, name=self._name, has_store=True)

    async def store(self, name: str) -> LightningStore:
        _check_name(name, self._name)
        return self._store

    def in_use(self, store: LightningStore) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def metrics_path(self, name: str) -> Path | None:
        return self.entry(name).metrics_path

    async def close(self) -> None:
        """The store is closed by its owner."""


def _check_name(name: str, known: str) -> None:
    if name != known:
        raise UnknownIdError(f"there is no run {name!r} here: the only one is {known!r}")


class _Opened(msgspec.Struct):
    """An open store and the identity of its file: one that was created again under the same name is another."""

    store: LightningStore
    file: tuple[int, int]
    last_used: float
    uses: int = 0
    is_given_up: bool = False

    async def give_up(self) -> None:
        """Close it now, or when its last use ends."""
        self.is_given_up = True
        if not self.uses:
            await self.store.close()


class _OpenStores:
    """Store files that are open for reading."""

    def __init__(self) -> None:
        self._open: dict[Path, _Opened] = {}
        self._opening = asyncio.Lock()

    async def get(self, entry: RunEntry) -> LightningStore:
        path = entry.store_path
        if path is None:
            raise UnknownIdError(f"run {entry.name!r} has no store: it kept its rollouts in memory, or has none")
        async with self._opening:
            file = _identity(path)
            known = self._open.get(path)
            if known is None or known.file != file:
                known = await self._open_anew(path, file)
            known.last_used = time.monotonic()
            return known.store

    async def _open_anew(self, path: Path, file: tuple[int, int]) -> _Opened:
        if (before := self._open.pop(path, None)) is not None:
            await before.give_up()
        await self._close_unused()
        store = await asyncio.to_thread(SQLiteStore, path, read_only=True)
        self._open[path] = _Opened(store, file, time.monotonic())
        return self._open[path]

    @asynccontextmanager
    async def in_use(self, store: LightningStore) -> AsyncIterator[None]:
        found = next((each for each in self._open.values() if each.store is store), None)
        if found is None:
            yield  # dropped already
            return
        found.uses += 1
        try:
            yield
        finally:
            found.uses -= 1
            found.last_used = time.monotonic()
            if found.is_given_up:
                await found.give_up()

    async def _close_unused(self) -> None:
        if len(self._open) < MAX_OPEN:
            return
        limit = time.monotonic() - UNUSED_SECONDS
        for path in [path for path, each in self._open.items() if each.last_used < limit and not each.uses]:
            await self._open.pop(path).give_up()

    async def close(self) -> None:
        async with self._opening:
            for each in self._open.values():
                await each.store.close()
            self._open.clear()


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise StoreFileError(f"the store file {str(path)!r} cannot be read: {describe(error)}") from error
    return found.st_dev, found.st_ino
