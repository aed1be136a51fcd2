"""`sharpen store`: serve a store (see `store_serving`), and maintain it: stats, prune, backup."""

import argparse
import asyncio
import re
import sys
from pathlib import Path
from typing import Any

from ..errors import ConfigError, InvalidInputError
from .addresses import DATABASE_VARIABLE, STORE_PORT, is_address, is_database
from .exit_codes import FAILED
from .inner_commands import add_inner_commands, leave_to_outer
from .output import Output, add_output_options
from .parser import examples
from .store_choice import STORE, named_store
from .store_serving import DATABASE, run_serve

_UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "store",
        help="serve a store, show its size, prune it or back it up",
        description="Serve a store (the default, also for `sharpen store FILE`), show its statistics, prune it or back "
        "it up. A store is a file, or a PostgreSQL or Redis database. Read a URL with a password from the environment: "
        f"{DATABASE_VARIABLE} for serve, env:NAME elsewhere.",
        epilog=examples(
            "sharpen store runs/shared.db                     # then: sharpen runner, sharpen algorithm",
            "SHARPEN_DATABASE_URL=postgresql://... sharpen store serve --host 0.0.0.0",
            "sharpen store stats last",
            "sharpen store prune last --older-than 7d",
            "sharpen store backup last copy.db                # also while a run writes to it",
        ),
    )
    _add_serve_options(parser)
    inner = add_inner_commands(parser, dest="store_command", metavar="COMMAND", implied="serve", is_argument=_is_file)
    serve = inner.add_parser("serve", help="serve a store to runners and algorithms in other processes")
    serve.add_argument(
        "database",
        nargs="?",
        metavar="FILE",
        help="store file, created if it does not exist, or database: postgresql://…, redis://… or env:NAME (default: "
        f"the value of {DATABASE_VARIABLE}, otherwise {DATABASE})",
    )
    _add_serve_options(serve)
    leave_to_outer(serve, parser)
    _add_others(inner, parser)


def _add_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=STORE_PORT, help=f"port to listen on, 0 for a free one (default: {STORE_PORT})"
    )
    parser.add_argument(
        "--no-token", action="store_true", help="allow every program on this machine to connect without a token"
    )
    parser.add_argument("--no-dashboard", action="store_true", help="do not serve the dashboard at /dashboard")
    parser.add_argument(
        "--synchronous",
        choices=("normal", "full"),
        help="durability of a store file; full survives power loss (default: normal)",
    )
    add_output_options(parser)
    parser.set_defaults(run=run_serve)


def _add_others(inner: "argparse._SubParsersAction[argparse.ArgumentParser]", outer: argparse.ArgumentParser) -> None:
    stats = inner.add_parser("stats", help="show what a store contains and how many rollouts are queued or running")
    stats.add_argument("store", metavar="STORE", nargs="?", default="last", help=f"{STORE} (default: last)")
    stats.set_defaults(run=run_stats)
    prune = inner.add_parser("prune", help="delete old finished rollouts with their attempts and spans")
    prune.add_argument("store", metavar="STORE", help=STORE)
    prune.add_argument(
        "--older-than", required=True, type=_age, metavar="AGE", help="minimum age, such as 7d, 12h or 30min"
    )
    prune.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")
    prune.set_defaults(run=run_prune)
    backup = inner.add_parser("backup", help="copy a store file, even while it is in use")
    backup.add_argument("store", metavar="STORE", help="a store file, or a run (name, folder or 'last')")
    backup.add_argument("file", metavar="FILE", help="the copy; must not exist yet")
    backup.set_defaults(run=run_backup)
    for parser in (stats, prune, backup):
        add_output_options(parser)
        leave_to_outer(parser, outer)


def _is_file(word: str) -> bool:
    """Whether a word is a database or the path of a file, which may be new, rather than a misspelt command."""
    return "/" in word or word.startswith("env:") or Path(word).suffix != "" or Path(word).is_file()


def _age(text: str) -> float:
    found = _AGE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: write a number and a unit, such as 7d, 12h or 30min")
    return float(found[1]) * _UNITS[found[2]]


# -- stats, prune, backup ----------------------------------------------------------------------------


def run_stats(arguments: argparse.Namespace) -> None:
    """Print what a store contains."""
    out = Output.of(arguments)
    label, found = asyncio.run(_stats(arguments.store))
    if out.is_json:
        out.value({"store": label, **found})
        return
    by_status = ", ".join(f"{count:,} {status}" for status, count in found["rollouts_by_status"].items() if count)
    rows: list[tuple[str, object]] = [
        ("rollouts", f"{found['total_rollouts']:,}" + (f" ({by_status})" if by_status else "")),
        ("queue", f"{found['queue_length']:,}"),
        ("attempts", f"{found['total_attempts']:,} ({found['open_attempts']:,} open)"),
        ("spans", f"{found['total_spans']:,}"),
        ("resources", f"{found['total_resources']:,}"),
        ("workers", f"{found['total_workers']:,}"),
        ("size", f"{found['size_bytes'] / 1e6:,.1f} MB"),
    ]
    out.table(("item", "amount"), rows, title=f"Store {label}")


async def _stats(text: str) -> tuple[str, dict[str, Any]]:
    async with named_store(text) as opened:
        return opened.label, dict(await opened.store.statistics())


def run_prune(arguments: argparse.Namespace) -> int | None:
    """Delete old finished rollouts."""
    out = Output.of(arguments)
    opened = named_store(arguments.store, read_only=False)
    question = f"Delete all rollouts of {opened.label} that finished more than {_said(arguments.older_than)} ago?"
    if not arguments.yes and not _is_sure(question):
        out.note("Nothing was deleted.")
        return FAILED
    count = asyncio.run(_prune(arguments))
    if out.is_json:
        out.value({"store": opened.label, "deleted": count})
    else:
        out.line(f"deleted {count:,} rollout{'s' * (count != 1)}")
    return None


async def _prune(arguments: argparse.Namespace) -> int:
    async with named_store(arguments.store, read_only=False) as opened:
        return await opened.store.prune(arguments.older_than)


def _is_sure(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(
            "cannot ask for confirmation without a terminal, and deleting cannot be undone: pass --yes to delete"
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _said(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} seconds"


def run_backup(arguments: argparse.Namespace) -> None:
    """Copy a store file."""
    from ..store.backup import backup_store

    out, target = Output.of(arguments), Path(arguments.file)
    if is_address(arguments.store):
        raise InvalidInputError(f"{arguments.store} is a store server: back up its file on the machine that serves it")
    opened = named_store(arguments.store)
    if is_database(arguments.store):
        raise InvalidInputError(
            f"{opened.label} is a database: back it up with its own tools; {_own_backup(opened.label)}"
        )
    assert opened.path is not None  # it is neither an address nor a database
    _check_target(target)
    backup_store(opened.path, target)
    size = target.stat().st_size
    if out.is_json:
        out.value({"store": str(opened.path), "file": str(target), "bytes": size})
    else:
        out.line(f"copied {opened.path} to {target} ({size / 1e6:,.1f} MB)")


def _check_target(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{str(target)!r} already exists, and a backup does not overwrite files: choose another name")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"folder {str(target.parent)!r} for {target.name!r} does not exist: create it first")


def _own_backup(label: str) -> str:
    if label.startswith("redis"):
        return "`redis-cli --rdb FILE` writes a snapshot, or copy the append-only files"
    return "pg_dump writes a backup while the database is in use, and pg_restore restores it"
