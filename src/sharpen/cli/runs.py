"""`sharpen runs`: list, show, compare, export and remove runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .columns import Column
from .counts import count_from
from .failures import saying_what_failed
from .inner_commands import add_inner_commands, leave_to_outer
from .output import Output, add_output_options
from .parser import examples

if TYPE_CHECKING:
    from ..archive.catalog import RunCatalog, RunEntry

STATES = ("running", "succeeded", "failed", "interrupted", "killed", "ended")
KINDS = ("agents", "simulator", "fine-tuning", "store")
STYLES = {"running": "cyan", "succeeded": "green", "failed": "red", "interrupted": "yellow", "killed": "red"}
_LIMIT = 50
_COLUMNS = (
    Column("run"),
    Column("state"),
    Column("algorithm", least=10, spare=2),
    Column("started", spare=4),
    Column("duration", spare=3),
    Column("rollouts", spare=1),
    Column("reward"),
)
_DESCRIPTION = (
    "List, show and compare runs, copy the best result of one, and remove runs. Runs are kept in the folder `runs`, or "
    "in the one that SHARPEN_RUNS names."
)
_RUN = "folder name, given name, unique part of the name, path, or `last`"
_EPILOG = examples(
    "sharpen runs                            # the newest runs, same as `sharpen runs list`",
    "sharpen runs list --state failed --limit 10",
    "sharpen runs show last                  # or: sharpen runs last",
    "sharpen runs compare 1115-0930 1115-1042",
    "sharpen runs best last --out best-prompt",
    "sharpen runs rm 20261115-093005-apo --yes",
)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "runs", help="list, show, compare and remove runs", description=_DESCRIPTION, epilog=_EPILOG
    )
    _add_list_options(parser)
    parser.set_defaults(run=list_runs)
    what = add_inner_commands(parser, dest="what", metavar="WHAT", implied="show", is_argument=_is_run)

    listing = what.add_parser("list", help="list runs, newest first (the default)")
    _add_list_options(listing)
    listing.set_defaults(run=list_runs)

    one = what.add_parser("show", help="show one run: configuration, metrics, how it ended, and where its files are")
    one.add_argument("name", metavar="RUN", nargs="?", default="last", help=f"the run: {_RUN} (default: last)")
    one.add_argument("--traceback", action="store_true", help="show the full traceback of its error")
    one.set_defaults(run=show_run)

    several = what.add_parser("compare", help="compare runs side by side, with 95 %% intervals and paired differences")
    several.add_argument("names", metavar="RUN", nargs="+", help=f"two or more runs: {_RUN}")
    several.set_defaults(run=compare_runs)

    best = what.add_parser("best", help="copy the best prompt, model or policy of a run into a folder")
    best.add_argument("name", metavar="RUN", help=f"the run: {_RUN} (the latest that trained something)")
    best.add_argument("--out", metavar="FOLDER", required=True, type=Path, help="the folder to create")
    best.set_defaults(run=export_best_of_run)

    removing = what.add_parser("rm", help="remove runs and all their files")
    removing.add_argument("names", metavar="RUN", nargs="+", help=f"the runs: {_RUN}")
    removing.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")
    removing.set_defaults(run=remove_runs)

    for inner in (one, several, best, removing):
        add_output_options(inner)
    for inner in (listing, one, several, best, removing):
        leave_to_outer(inner, parser)


def _add_list_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", choices=STATES, help="list only runs in this state")
    parser.add_argument("--kind", choices=KINDS, help="list only runs of this kind")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=count_from(0),
        default=_LIMIT,
        help=f"maximum number of runs to list (default {_LIMIT}, 0 for all)",
    )
    add_output_options(parser)


def _is_run(word: str) -> bool:
    """Whether a word names a run rather than a misspelt command, which has no digits and no slash."""
    from ..runs import runs_root

    return word == "last" or "/" in word or any(map(str.isdigit, word)) or (runs_root() / word).is_dir()


# -- list --------------------------------------------------------------------------------------------


def list_runs(arguments: argparse.Namespace) -> None:
    """List the runs, newest first."""
    from ..archive.catalog import RunCatalog

    out, catalog = Output.of(arguments), RunCatalog()
    every = catalog.entries()
    wanted = [each for each in every if _is_wanted(each, arguments)]
    shown = _counted(wanted[: arguments.limit or None])
    if out.is_json:
        out.value([as_json(each) for each in shown])
        return
    if not shown:
        filtered = f"; none of the {len(every)} has the requested state or kind" if every else ""
        out.note(f"no runs in {str(catalog.root)!r}{filtered}")
        _note_unreadable(out, catalog)
        return
    out.table(_COLUMNS, [_row(each) for each in shown])
    if len(shown) < len(wanted):
        more = len(wanted) - len(shown)
        out.note(f"{more} older run{'s' * (more != 1)} not shown; use --limit 0 to list all")
    _note_unreadable(out, catalog)


def _counted(entries: "list[RunEntry]") -> "list[RunEntry]":
    """Return the entries; running ones have the number of rollouts they have finished so far."""
    import asyncio

    from ..archive.lookup import with_live_rollouts

    async def count() -> "list[RunEntry]":
        return [await with_live_rollouts(entry) for entry in entries]

    return asyncio.run(count()) if any(entry.is_running for entry in entries) else entries


def _note_unreadable(out: Output, catalog: "RunCatalog") -> None:
    for name, why in catalog.unreadable().items():
        out.note(f"cannot read run {name!r}: {why}")


def _is_wanted(entry: "RunEntry", arguments: argparse.Namespace) -> bool:
    return arguments.state in (None, entry.state) and arguments.kind in (None, entry.kind)


def _row(entry: "RunEntry") -> list[object]:
    from rich.text import Text

    from ..dashboard.formats import duration, moment

    started = None if entry.started is None else moment(entry.started)
    took = None if entry.seconds is None else duration(entry.seconds)
    state = Text(entry.state, style=STYLES.get(entry.state, ""))
    made_by = entry.algorithm or (None if entry.kind == "agents" else entry.kind)
    return [entry.name, state, made_by, started, took, entry.rollouts, entry.reward]


def as_json(entry: "RunEntry") -> dict[str, object]:
    """Return a run as a JSON object."""
    import msgspec

    return msgspec.structs.asdict(entry) | {
        "rollouts": entry.rollouts,
        "reward": entry.reward,
        "reward_name": entry.reward_name,
        "store_path": entry.store_path,
    }


# -- show, compare -----------------------------------------------------------------------------------


def show_run(arguments: argparse.Namespace) -> None:
    """Show one run."""
    from ..archive.catalog import RunCatalog
    from .run_page import RunPage

    (entry,) = _counted([RunCatalog().find(arguments.name)])
    out, page = Output.of(arguments), RunPage(entry)
    if out.is_json:
        out.value(page.as_json())
    else:
        page.draw(out, with_traceback=arguments.traceback)


def compare_runs(arguments: argparse.Namespace) -> None:
    """Compare several runs side by side."""
    import asyncio

    from ..archive.comparison import compare
    from ..errors import ConfigError
    from .run_comparison import draw_comparison

    out, entries = Output.of(arguments), _found(arguments.names)
    if len(entries) < 2:
        raise ConfigError(f"only one run to compare, {entries[0].name!r}: name two or more different runs")
    comparison = asyncio.run(compare(entries))
    if out.is_json:
        out.value(comparison)
    else:
        draw_comparison(out, comparison)


# -- best, rm ----------------------------------------------------------------------------------------


def export_best_of_run(arguments: argparse.Namespace) -> None:
    """Copy the best result of a run."""
    from ..archive.best import export_best
    from .config.last_run import find_trained

    out, entry = Output.of(arguments), find_trained(arguments.name)
    paths = export_best(entry, arguments.out)
    if out.is_json:
        out.value({"run": entry.name, "out": arguments.out.absolute(), "files": paths})
        return
    out.line(f"best result of {entry.name}:")
    for path in paths:
        out.line(f"  {path}{'/' if path.is_dir() else ''}")


def remove_runs(arguments: argparse.Namespace) -> int | None:
    """Remove runs; if one of them cannot be removed, remove none."""
    from ..archive.removal import check_removable, remove_run

    out, entries = Output.of(arguments), _found(arguments.names, must_be_unique=True)
    for entry in entries:
        check_removable(entry)
    if not arguments.yes and not _agrees(out, entries):
        return 1
    for entry in entries:
        with saying_what_failed(f"cannot remove run {entry.name!r}"):
            remove_run(entry)
    if out.is_json:
        out.value({"removed": [entry.name for entry in entries]})
    else:
        out.line("\n".join(f"removed {entry.path}" for entry in entries))
    return None


def _found(names: Sequence[str], *, must_be_unique: bool = False) -> list["RunEntry"]:
    """Return the runs, each once even if two names mean the same run."""
    from ..archive.catalog import RunCatalog

    catalog = RunCatalog()
    found = [catalog.find(name, must_be_unique=must_be_unique) for name in names]
    return list({entry.path: entry for entry in found}.values())


def _agrees(out: Output, entries: Sequence["RunEntry"]) -> bool:
    """Ask for confirmation on the terminal; without a terminal, nothing is removed."""
    from ..archive.catalog import size_of
    from ..dashboard.formats import size
    from ..errors import ConfigError

    if out.is_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("cannot ask for confirmation without a terminal: pass --yes to remove the runs")
    for entry in entries:
        out.line(f"{entry.path}  {entry.state}, {size(size_of(entry))}")
    answer = input(f"Remove {'this run' if len(entries) == 1 else f'these {len(entries)} runs'}? [y/N] ")
    if answer.strip().lower() in ("y", "yes"):
        return True
    out.note("Nothing was removed.")
    return False
