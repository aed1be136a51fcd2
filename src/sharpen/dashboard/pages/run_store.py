"""The run of a request, with its store open."""

import asyncio

import msgspec
from starlette.requests import Request

from ...archive.catalog import RunEntry
from ...store import LightningStore
from ..sources import Source, StoreSource

_FILE = (
    "These pages read the files of the run and change nothing in them. To cancel or retry, open the dashboard at the "
    "address of the running store (the run's log shows it)."
)
_NO_TOKEN = "Changes need the edit token: open the dashboard with it."


class RunStore(msgspec.Struct, frozen=True):
    """The run and its store. `why_not_changed` is None if changes are possible."""

    entry: RunEntry
    store: LightningStore
    why_not_changed: str | None

    @classmethod
    async def of(cls, request: Request) -> "RunStore":
        source: Source = request.app.state.source
        entry = await run_entry(request)
        return cls(entry, await source.store(entry.name), _why_not(request, source))


async def run_entry(request: Request) -> RunEntry:
    """Return the run that the URL names. Its files are read in a thread."""
    source: Source = request.app.state.source
    return await asyncio.to_thread(source.entry, request.path_params["run"])


def _why_not(request: Request, source: Source) -> str | None:
    # A file may belong to a running store server, which would not notice a change.
    if not isinstance(source, StoreSource):
        return _FILE
    return None if getattr(request.state, "can_edit", False) else _NO_TOKEN
