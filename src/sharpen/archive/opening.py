"""Opening a store by what a user calls it: a file, the folder or name of a run, the address of a server, the URL of a
database, `env:NAME` for one of these that stands in the environment, or `last`."""

import os
from pathlib import Path
from types import TracebackType

from ..components.paths import resolve_address
from ..errors import ConfigError, InvalidInputError, UnknownIdError
from ..secrets import hidden_password
from ..store import LightningStore
from ..store.opening import open_url, scheme_of
from .catalog import LAST, RunCatalog, RunEntry

TOKEN_VARIABLE = "SHARPEN_TOKEN"
RETRY_SECONDS = 5.0  # a person waits; a run that goes on would be more patient
_SQLITE_SCHEME = "sqlite:///"
_SERVED = ("http://", "https://")


class OpenedStore:
    """`async with open_store(text) as opened:` the store is open inside, and closed at the end."""

    def __init__(
        self, where: Path | str, *, run: RunEntry | None, label: str, read_only: bool = True, token: str | None = None
    ) -> None:
        self.run = run
        self.label = label
        """What messages call it."""
        self._where, self._read_only, self._token = where, read_only, token
        self._store: LightningStore | None = None

    @property
    def store(self) -> LightningStore:
        if self._store is None:
            raise ConfigError("the store is not open: use it inside `async with open_store(...)`")
        return self._store

    @property
    def path(self) -> Path | None:
        """Its file; None for a server and a database."""
        return self._where if isinstance(self._where, Path) else None

    async def __aenter__(self) -> "OpenedStore":
        self._store = self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    def _open(self) -> LightningStore:
        if isinstance(self._where, Path) or not self._where.startswith(_SERVED):
            return open_url(self._where, read_only=self._read_only)
        from ..store.client import LightningStoreClient

        return LightningStoreClient(self._where, self._token, retry_seconds=RETRY_SECONDS)


def open_store(text: str | None, *, read_only: bool = True, token: str | None = None) -> OpenedStore:
    """The store that a text names; None is `last`. What it names must be there, but is not opened yet.

    Of a server the token is the one given, else that of SHARPEN_TOKEN.
    """
    named = LAST if text is None else resolve_address(text.strip())
    if not named:
        raise InvalidInputError("the store is an empty text: give a file, a run, an address, or 'last'")
    if named.startswith(_SERVED):
        found = token or os.environ.get(TOKEN_VARIABLE, "").strip() or None
        return OpenedStore(named, run=None, label=named, read_only=read_only, token=found)
    if scheme_of(named) != "sqlite":  # a database; one of an unknown kind is refused when it is opened
        return OpenedStore(named, run=None, label=hidden_password(named), read_only=read_only)
    path = Path(named.removeprefix(_SQLITE_SCHEME)).expanduser()
    if path.is_file() or named.startswith(_SQLITE_SCHEME):
        return _of_file(path, read_only=read_only)
    return _of_run(RunCatalog().find(named), read_only=read_only)


def _of_file(path: Path, *, read_only: bool) -> OpenedStore:
    if not path.is_file():
        raise UnknownIdError(f"there is no store file {str(path)!r}")
    if _is_something_else(path):
        raise InvalidInputError(f"{str(path)!r} is no store: it is not a SQLite file")
    absolute = path.absolute()
    run = RunEntry.of(absolute.parent) if (absolute.parent / "config.json").is_file() else None
    return OpenedStore(absolute, run=run, label=str(path), read_only=read_only)


def _is_something_else(path: Path) -> bool:
    from ..store.sqlite_schema import HEADER, open_files

    if open_files.has(path):
        return False  # closing a second descriptor of it would drop the locks of the first
    with open(path, "rb") as file:
        head = file.read(len(HEADER))
    return head not in (b"", HEADER)


def _of_run(run: RunEntry, *, read_only: bool) -> OpenedStore:
    if run.store_path is None:
        raise UnknownIdError(
            f"the run {run.name!r} has no store in its folder {str(run.path)!r}: it kept its rollouts in memory, "
            "behind a server or in a database (then give its address), or it is no run of agents"
        )
    return OpenedStore(run.store_path, run=run, label=run.name, read_only=read_only)
