"""`sharpen store serve`: a server for a store in a file or a database."""

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, StoreFileError
from .addresses import DATABASE_VARIABLE
from .collector import tune_collector
from .output import Output
from .signals import ended_by_signals

if TYPE_CHECKING:
    from starlette.types import ASGIApp as App

    from ..store import LightningStore

DATABASE = "sharpen.db"
Place = Path | str
"""Where a store is: a file, or the URL of a database."""


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    from ..http.proxies import is_loopback

    if not 0 <= arguments.port <= 65535:
        raise ConfigError(f"--port is {arguments.port}: use 1 to 65535, or 0 for a free port")
    if arguments.no_token and not is_loopback(arguments.host):
        raise ConfigError(f"--no-token with --host {arguments.host!r} would let anyone connect: use only one of them")
    return asyncio.run(_serve(arguments, Output.of(arguments)))


async def _serve(arguments: argparse.Namespace, out: Output) -> int:
    from ..store.opening import open_url
    from ..store.server import LightningStoreServer
    from ..store.token_files import given_token, left_in_file, token_file

    place = _place(getattr(arguments, "database", None))
    _check(place)
    token = None if arguments.no_token else given_token() or _new_token()
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    tune_collector()
    with ended_by_signals(lambda: loop.call_soon_threadsafe(stopping.set)) as ended, contextlib.ExitStack() as stack:
        options = {} if arguments.synchronous is None else {"synchronous": arguments.synchronous}
        store = open_url(place, **options)
        try:
            stack.enter_context(_shown_as_served(place))
            mounts = [] if arguments.no_dashboard else _mounts(store, place, token, out)
            server = LightningStoreServer(store, arguments.host, arguments.port, token, mounts)
            await server.start()
            try:
                if token is not None and given_token() is None:
                    stack.enter_context(left_in_file(token_file(arguments.host, server.port or 0), token))
                _announce(server.endpoint, place, token, out, has_dashboard=bool(mounts))
                await stopping.wait()
            finally:
                await server.stop()
        finally:
            await store.close()
    return ended.code


# -- where it lies -----------------------------------------------------------------------------------


def _place(text: str | None) -> Place:
    """Return the named store, otherwise the database of the environment, otherwise the default file. A folder stands
    for the store file in it."""
    from ..components.paths import resolve_address
    from ..store.opening import scheme_of

    named = text or os.environ.get(DATABASE_VARIABLE, "").strip() or DATABASE
    found = resolve_address(named)
    if scheme_of(found) != "sqlite":
        return found
    path = Path(found.removeprefix("sqlite:///")).expanduser()
    return path / "store.db" if path.is_dir() else path


def _check(place: Place) -> None:
    """Raise a `ConfigError` for a file that is not a store, so that a supervisor does not restart the server."""
    from ..store.sqlite.schema import check_file

    try:
        if isinstance(place, Path):
            check_file(place)
    except StoreFileError as error:
        raise ConfigError(str(error)) from None


def _run_folder(place: Place) -> Path | None:
    """Return the folder of the run that the store belongs to, or None."""
    if not isinstance(place, Path):
        return None
    folder = place.absolute().parent
    return folder if (folder / "config.json").is_file() else None


def _shown_as_served(place: Place) -> contextlib.AbstractContextManager[None]:
    """Mark the run of a served store, so that it is not removed; does nothing for other stores."""
    from ..runs.folder import served

    folder = _run_folder(place)
    return served(folder) if folder is not None else contextlib.nullcontext()


def _label(place: Place) -> str:
    """Return the path, or the URL without its password."""
    from ..secrets import hidden_password

    return str(place) if isinstance(place, Path) else hidden_password(place)


# -- what is served ----------------------------------------------------------------------------------


def _new_token() -> str:
    from ..execution.serving import new_token

    return new_token()


def _mounts(store: "LightningStore", place: Place, token: str | None, out: Output) -> "list[tuple[str, App]]":
    """Return the dashboard, if jinja2 is installed."""
    from importlib.util import find_spec

    if find_spec("jinja2") is None:
        out.note("The dashboard is not served because jinja2 is not installed: pip install 'sharpen[dashboard]'")
        return []
    from ..dashboard.mounted import dashboard_app

    run_path = _run_folder(place)
    own_name = place.name if isinstance(place, Path) else _label(place)
    name = own_name if run_path is None else run_path.name
    return [("/dashboard", dashboard_app(store, name=name, run_path=run_path, edit_token=token))]


def _announce(url: str, place: Place, token: str | None, out: Output, *, has_dashboard: bool) -> None:
    """Print where the store is served. The token is printed only on a terminal, never to a log or a pipe; programs of
    this user read it from its file."""
    from ..store.token_files import given_token

    dashboard = f"{url}/dashboard/" if has_dashboard else None
    if out.is_json:
        lies = {"file": str(place.absolute())} if isinstance(place, Path) else {"database": _label(place)}
        out.value({"url": url, **lies, "dashboard": dashboard, "needs_token": token is not None})
        return
    is_shown = token is not None and given_token() is None and sys.stdout.isatty()
    out.line(f"store      {url}  ({_label(place)})")
    if dashboard is not None:
        out.line(f"dashboard  {dashboard}{f'?token={token}' if is_shown else ''}")
    if token is None:
        out.note("Every program on this machine can read and write the store (--no-token).")
    elif given_token() is not None:
        out.note("Clients need the token in SHARPEN_TOKEN.")
    elif is_shown:
        out.line(f"token      {token}")
        out.note("Your programs on this machine find the token automatically; elsewhere, set SHARPEN_TOKEN to it.")
    else:
        out.note("Your programs on this machine find the token automatically; to choose your own, set SHARPEN_TOKEN.")
