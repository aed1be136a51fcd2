"""`sharpen dashboard [STORE]`: runs, rollouts and curves in the browser.

Anyone with the printed address can view it: it contains a random token, which is printed only here. Changes (cancel,
retry) need the token in SHARPEN_TOKEN and a store server: files are opened read-only.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from ..errors import ConfigError, PortTakenError
from .addresses import DASHBOARD_PORT, is_address, is_database, token_for
from .output import Output, add_output_options
from .parser import examples
from .signals import ended_by_signals

if TYPE_CHECKING:
    from ..dashboard.sources import Source

RETRY_SECONDS = 5.0  # a person is waiting


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "dashboard",
        help="view runs and rollouts in the browser",
        description="Serve the dashboard and print its address. The address contains a random token, and anyone who "
        "has it can view the dashboard. To cancel and retry rollouts, pass the address of a store server and set "
        "SHARPEN_TOKEN to its token; otherwise everything is read-only.",
        epilog=examples(
            "sharpen dashboard --open                  # all runs in the runs folder",
            "sharpen dashboard last                    # only the newest run",
            "sharpen dashboard old/store.db",
            "sharpen dashboard http://127.0.0.1:4747   # a store server",
            "sharpen dashboard env:SHARPEN_DATABASE_URL",
        ),
    )
    parser.add_argument(
        "store",
        nargs="?",
        metavar="STORE",
        help="what to show: a run (name, folder or 'last'), a store file, a folder of runs, the address of a store "
        "server, or a database: postgresql://…, redis://… or env:NAME (default: the runs folder)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--port",
        type=int,
        help=f"port, 0 for a free one (default: {DASHBOARD_PORT}, or a free one if that is taken)",
    )
    parser.add_argument(
        "--no-token",
        action="store_true",
        help="allow every program on this machine to view it without a token, read-only",
    )
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    _check(arguments)
    out = Output.of(arguments)
    from ..dashboard import app  # noqa: F401 - a missing package is reported before anything is opened
    from ..web.serving import new_loop

    bound = _listen(arguments.host, arguments.port, out)
    with contextlib.closing(bound), asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_serve(arguments, bound, out))


def _check(arguments: argparse.Namespace) -> None:
    from ..http.proxies import is_loopback

    if arguments.port is not None and not 0 <= arguments.port <= 65535:
        raise ConfigError(f"--port is {arguments.port}: use 1 to 65535, or 0 for a free port")
    if arguments.no_token and not is_loopback(arguments.host):
        raise ConfigError(f"--no-token with --host {arguments.host!r} would let anyone view it: use only one of them")
    if arguments.store is not None and not _is_served(arguments.store) and not is_database(arguments.store):
        _place_of(arguments.store)  # a missing run is reported before a port is taken


def _listen(host: str, port: int | None, out: Output) -> socket.socket:
    """Return a socket: an explicit port must be free; the default port falls back to a free one."""
    from ..web.serving import listen

    if port is not None:
        return listen(host, port)
    try:
        return listen(host, DASHBOARD_PORT)
    except PortTakenError:
        bound = listen(host, 0)
        out.note(
            f"Port {DASHBOARD_PORT} is in use (by another dashboard?); using port {bound.getsockname()[1]} instead."
        )
        return bound


async def _serve(arguments: argparse.Namespace, bound: socket.socket, out: Output) -> int:
    from ..dashboard.serving import serve_dashboard

    tokens = _Tokens.of(arguments)
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    async with _opened(arguments.store) as source:
        with (
            contextlib.ExitStack() as pages,
            ended_by_signals(lambda: loop.call_soon_threadsafe(stopping.set)) as ended,
        ):

            def ready() -> None:
                url = _url(arguments.host, bound, tokens.view)
                _announce(out, url, source.label, can_edit=tokens.edit is not None and _is_served(arguments.store))
                if arguments.open:
                    pages.enter_context(_in_browser(url, out))

            await serve_dashboard(
                source, bound, view_token=tokens.view, edit_token=tokens.edit, ready=ready, stopping=stopping
            )
    return ended.code


class _Tokens(NamedTuple):
    view: str | None
    edit: str | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "_Tokens":
        if arguments.no_token:
            return cls(None, None)
        return cls(secrets.token_urlsafe(24), os.environ.get("SHARPEN_TOKEN", "").strip() or None)


# -- the source --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _opened(text: str | None) -> AsyncIterator["Source"]:
    from ..dashboard.sources import StoreSource

    if text is not None and is_database(text):
        from ..archive.lookup import open_store

        async with open_store(text) as opened:
            yield StoreSource(opened.store, opened.label)
        return
    if text is None or not is_address(text):
        yield _of_files(text)  # the server closes it
        return
    from ..store.client import LightningStoreClient

    client = LightningStoreClient(text, token_for(text), retry_seconds=RETRY_SECONDS)
    try:
        await client.statistics()  # an unreachable server or a wrong token is reported at once
        yield StoreSource(client, _name_of(text))
    finally:
        await client.close()


def _name_of(address: str) -> str:
    """Return the host and port: credentials in an address must not appear in titles and links."""
    return urlsplit(address).netloc.rpartition("@")[2]


def _of_files(text: str | None) -> "Source":
    from ..dashboard.serving import source_of

    return source_of(None if text is None else _place_of(text))


def _place_of(text: str) -> Path:
    """Return an existing path, otherwise the folder of the run with that name."""
    from ..archive.catalog import RunCatalog

    path = Path(text).expanduser()
    return path if path.exists() else RunCatalog().find(text).path


def _is_served(text: str | None) -> bool:
    """Whether the store is on a server; only then can it be changed."""
    return text is not None and is_address(text)


# -- announcing --------------------------------------------------------------------------------------


def _url(host: str, bound: socket.socket, token: str | None) -> str:
    from ..web.serving import address

    url = address(host, bound.getsockname()[1]) + "/"
    return url if token is None else f"{url}?token={token}"


def _announce(out: Output, url: str, label: str, *, can_edit: bool) -> None:
    if out.is_json:
        out.value({"url": url, "source": label, "can_edit": can_edit})
        return
    out.line(url)
    rights = "the token in SHARPEN_TOKEN allows changes" if can_edit else "read-only"
    out.note(f"Serving the dashboard of {label} ({rights}). Press Ctrl-C to stop.")


@contextlib.contextmanager
def _in_browser(url: str, out: Output) -> Iterator[None]:
    """Open it through a page that only this user can read: other users can see the browser's command line."""
    import webbrowser

    handle, name = tempfile.mkstemp(prefix="sharpen-dashboard-", suffix=".html")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">')
        if not webbrowser.open(Path(name).as_uri()):
            out.note("Could not open a browser: open the address above.")
        yield
    finally:
        os.unlink(name)
