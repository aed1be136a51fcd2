"""Serve the dashboard in a separate process until it is stopped."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from ..archive.catalog import RunEntry
from ..errors import UnknownIdError
from ..web.serving import allowed_hosts, serving, stop_at_signals
from .sources import RunSource, RunsSource, Source


def source_of(path: Path | None = None) -> Source:
    """Return the source for a path: a store file, the folder of a run, or a folder of runs (the default)."""
    if path is None:
        return RunsSource()
    if path.is_dir():
        with contextlib.suppress(UnknownIdError):
            RunEntry.of(path)
            return RunSource(path)
        return RunsSource(path)
    return RunSource(path)


async def serve_dashboard(
    source: Source,
    bound: socket.socket,
    *,
    view_token: str | None = None,
    edit_token: str | None = None,
    ready: Callable[[], object] = lambda: None,
    stopping: asyncio.Event | None = None,
) -> None:
    """Serve on a listening socket until `stopping` is set or a signal ends the process; then close the source."""
    from .app import make_app

    stop = stopping or stop_at_signals()
    hosts = allowed_hosts(bound.getsockname()[0])
    app = make_app(source, view_token=view_token, edit_token=edit_token, hosts=hosts, stopping=stop)
    try:
        async with serving(app, bound):
            ready()
            await stop.wait()
    finally:
        await source.close()
