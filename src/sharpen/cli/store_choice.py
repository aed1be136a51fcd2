"""Which store a command reads: `--run RUN` or `--store STORE`; without them, the newest run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UnknownIdError
from .addresses import is_address, token_for

if TYPE_CHECKING:
    from ..archive.lookup import OpenedStore

STORE = (
    "a store file, a run (name, folder or 'last'), the address of a store server, or a database (postgresql://…, "
    "redis://…, env:NAME)"
)


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add `--run` and `--store`, which exclude each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--run", metavar="RUN", dest="run_name", help="run to read: name, unique part of it, or folder (default: last)"
    )
    group.add_argument(
        "--store", metavar="STORE", help="store to read: a file, the address of a store server, or a database"
    )


def chosen_store(arguments: argparse.Namespace, *, read_only: bool = True) -> "OpenedStore":
    """Return the store that the options name."""
    return named_store(arguments.store if arguments.store is not None else arguments.run_name, read_only=read_only)


def named_store(text: str | None, *, read_only: bool = True) -> "OpenedStore":
    """Return the store that a STORE argument names; for a store server, with the token of this user."""
    from ..archive.lookup import open_store

    token = token_for(text) if text is not None and is_address(text) else None
    try:
        return open_store(text, read_only=read_only, token=token)
    except UnknownIdError as error:
        if text is None or not _is_meant_as_file(text) or Path(text).expanduser().exists():
            raise
        raise UnknownIdError(f"there is no store file {text!r}; {error}") from None


def _is_meant_as_file(text: str) -> bool:
    return "://" not in text and ("/" in text or Path(text).suffix != "")
