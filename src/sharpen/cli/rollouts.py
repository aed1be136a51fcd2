"""`sharpen rollouts`: list and filter rollouts, show one as a transcript, export them."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .columns import Column
from .counts import count_from
from .failures import saying_what_failed
from .inner_commands import leave_to_outer
from .output import Output, add_output_options, one_line
from .parser import examples
from .store_choice import add_store_options, chosen_store

if TYPE_CHECKING:
    from ..archive.export import ExportFormat
    from ..archive.lookup import RolloutFilters
    from ..archive.transcript import Transcript
    from ..store import LightningStore
    from ..types import Attempt, Rollout, RolloutPage

# As `sharpen.types` has them, which is not loaded for a `--help`.
STATUSES = ("queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing")
MODES = ("train", "val", "test")
ORDERS = ("newest", "oldest", "reward_high", "reward_low", "finished")
_FORMATS: "dict[str, ExportFormat]" = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_PAGE = 500
_LISTED = 50
_TOGETHER = _LISTED
_TASK_WIDTH = 60
_COLUMNS = (
    Column("rollout"),
    Column("status"),
    Column("mode", spare=3),
    Column("reward"),
    Column("age", spare=4),
    Column("seconds", spare=5),
    Column("worker", spare=6),
    Column("task", least=16, spare=2),
    Column("error", least=16, spare=1),
)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "rollouts",
        help="list, show and export rollouts",
        description="List and filter the rollouts of a run (the default), show one as a transcript, or export them.",
        epilog=examples(
            "sharpen rollouts --status failed",
            "sharpen rollouts list --run grpo --reward-max 0.2 --order reward_low --limit 10",
            "sharpen rollouts show last",
            "sharpen rollouts show 3f2a --attempt 1 --spans",
            "sharpen rollouts export good.jsonl --reward-min 0.9 --spans",
        ),
    )
    _add_list_options(parser)
    parser.set_defaults(run=run_list)
    inner = parser.add_subparsers(dest="rollouts_command", metavar="COMMAND", parser_class=type(parser))
    for added in (_add_list(inner), _add_show(inner), _add_export(inner)):
        leave_to_outer(added, parser)


def _add_list(inner: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = inner.add_parser("list", help="list rollouts, newest first")
    _add_list_options(parser)
    parser.set_defaults(run=run_list)
    return parser


def _add_show(inner: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = inner.add_parser("show", help="show one rollout as a transcript, with rewards, errors and retries")
    parser.add_argument("rollout", metavar="ROLLOUT", help="the rollout: id, unique part of the id, or 'last'")
    parser.add_argument("--attempt", metavar="N|ID", help="attempt to show, by number or id (default: the latest)")
    parser.add_argument("--spans", action="store_true", help="also show all spans on a timeline")
    parser.add_argument("--tokens", action="store_true", help="also show token ids and log-probabilities, if recorded")
    add_store_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run_show)
    return parser


def _add_export(inner: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = inner.add_parser("export", help="write rollouts to a JSON Lines or Parquet file")
    parser.add_argument(
        "file", metavar="FILE", help="output file, ending in .jsonl or .parquet; overwritten if it exists"
    )
    parser.add_argument("--spans", action="store_true", help="include all spans")
    _add_filters(parser)
    parser.add_argument(
        "--limit", type=count_from(1), metavar="N", help="maximum number of rollouts to write (default: all)"
    )
    add_store_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run_export)
    return parser


def _add_list_options(parser: argparse.ArgumentParser) -> None:
    _add_filters(parser)
    # No default here: it would also apply to an inner `export`, which writes all.
    parser.add_argument(
        "--limit",
        type=count_from(0),
        metavar="N",
        help=f"maximum number of rollouts to list (default {_LISTED}, 0 for all)",
    )
    add_store_options(parser)
    add_output_options(parser)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("filters")
    group.add_argument("--status", action="append", choices=STATUSES, help="only this status (can be repeated)")
    group.add_argument("--mode", choices=MODES, help="only this mode")
    group.add_argument("--reward-min", type=float, metavar="X", help="lowest reward")
    group.add_argument("--reward-max", type=float, metavar="X", help="highest reward")
    group.add_argument("--search", metavar="TEXT", help="text in the id, task or metadata")
    group.add_argument("--worker", metavar="ID", help="worker of the latest attempt")
    group.add_argument("--group", metavar="NAME", help="group that the algorithm compared the rollouts in")
    group.add_argument("--order", choices=ORDERS, help="sort order (default: newest; for export: oldest)")


def filters_of(arguments: argparse.Namespace) -> "RolloutFilters":
    """Return the filters for `search_rollouts`."""
    found: dict[str, Any] = {
        "status_in": arguments.status,
        "mode": arguments.mode,
        "reward_min": arguments.reward_min,
        "reward_max": arguments.reward_max,
        "text": arguments.search,
        "worker_id": arguments.worker,
        "group": arguments.group,
        "order": arguments.order,
    }
    return {name: value for name, value in found.items() if value is not None}  # type: ignore[return-value]


# -- list --------------------------------------------------------------------------------------------


def run_list(arguments: argparse.Namespace) -> None:
    """List rollouts."""
    asyncio.run(_list(arguments))


async def _list(arguments: argparse.Namespace) -> None:
    out, filters = Output.of(arguments), filters_of(arguments)
    limit = _LISTED if arguments.limit is None else arguments.limit
    async with chosen_store(arguments) as opened:
        found, page = await _first(opened.store, filters, limit or sys.maxsize)
        attempts = await _latest_attempts(opened.store, found)
    has_more = page.next_cursor is not None
    if out.is_json:
        rows = [_as_json(rollout, attempt) for rollout, attempt in zip(found, attempts, strict=True)]
        out.value({"store": opened.label, "rollouts": rows, "total": page.total, "has_more": has_more})
        return
    if not found:
        out.note(f"no rollouts of {opened.label} match" if filters else f"no rollouts in {opened.label}")
        return
    now = time.time()
    rows_shown = [_row(rollout, attempt, now) for rollout, attempt in zip(found, attempts, strict=True)]
    out.table(_COLUMNS, rows_shown, title=f"Rollouts of {opened.label}")
    if has_more:
        of_all = "" if page.total is None else f" of {'' if page.is_total_exact else 'at least '}{page.total:,}"
        out.note(f"showing {len(found):,}{of_all} rollouts; use --limit 0 to list all")


async def _latest_attempts(store: "LightningStore", rollouts: "Sequence[Rollout]") -> "list[Attempt | None]":
    """Return the latest attempt of each, a few at a time: with a remote store each is a request."""
    found: list[Attempt | None] = []
    for start in range(0, len(rollouts), _TOGETHER):
        part = rollouts[start : start + _TOGETHER]
        found += await asyncio.gather(*(store.get_latest_attempt(each.rollout_id) for each in part))
    return found


def _as_json(rollout: "Rollout", attempt: "Attempt | None") -> dict[str, Any]:
    import msgspec

    from ..archive.lookup import why_ended

    error = None if attempt is None else why_ended(attempt)
    return {**msgspec.to_builtins(rollout), "attempt": attempt, "error": error}


async def _first(store: "LightningStore", filters: "RolloutFilters", limit: int) -> "tuple[list[Rollout], RolloutPage]":
    """Return up to `limit` rollouts, and the last page read, with the total of the first."""
    import msgspec

    page = await store.search_rollouts(**filters, limit=min(limit, _PAGE))
    found, total, is_exact = list(page.items), page.total, page.is_total_exact
    while len(found) < limit and page.next_cursor is not None:
        page = await store.search_rollouts(**filters, cursor=page.next_cursor, limit=min(limit - len(found), _PAGE))
        found += page.items
    return found, msgspec.structs.replace(page, total=total, is_total_exact=is_exact)


def _row(rollout: "Rollout", attempt: "Attempt | None", now: float) -> list[object]:
    from ..archive.lookup import why_ended

    seconds = None if rollout.end_time is None else round(rollout.end_time - rollout.start_time, 2)
    reason = None if attempt is None else why_ended(attempt)
    return [
        rollout.rollout_id,
        _styled(rollout.status),
        rollout.mode,
        rollout.reward,
        ago(now - rollout.start_time),
        seconds,
        attempt.worker_id if attempt is not None else None,
        _short(rollout.input),
        "" if reason is None else _short(reason),
    ]


def _styled(status: str) -> object:
    from rich.text import Text

    from .transcript_text import STATUS_STYLES

    return Text(status, style=STATUS_STYLES.get(status, ""))


def _short(task: object) -> str:
    import json

    text = task if isinstance(task, str) else json.dumps(task, ensure_ascii=False, default=str)
    line = one_line(text[: _TASK_WIDTH * 4])
    return line if len(line) <= _TASK_WIDTH else line[: _TASK_WIDTH - 1] + "…"


def ago(seconds: float) -> str:
    """Return an age in its largest unit: `3 d`, `5 min`."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


# -- show --------------------------------------------------------------------------------------------


def run_show(arguments: argparse.Namespace) -> None:
    """Show one rollout."""
    out = Output.of(arguments)
    transcript = asyncio.run(_transcript(arguments))
    if out.is_json:
        from .transcript_json import as_json

        out.value(as_json(transcript, with_spans=arguments.spans, with_tokens=arguments.tokens))
        return
    from .transcript_text import draw

    out.rich(draw(transcript, with_spans=arguments.spans, with_tokens=arguments.tokens))


async def _transcript(arguments: argparse.Namespace) -> "Transcript":
    from ..archive.lookup import find_attempt, find_rollout
    from ..archive.transcript import read_transcript

    async with chosen_store(arguments) as opened:
        rollout = await find_rollout(opened.store, arguments.rollout)
        if arguments.attempt is None:
            return await read_transcript(opened.store, rollout.rollout_id)
        attempts = await opened.store.query_attempts(rollout.rollout_id)
        attempt = find_attempt(list(attempts), arguments.attempt)
        return await read_transcript(opened.store, rollout.rollout_id, attempt.attempt_id)


# -- export ------------------------------------------------------------------------------------------


def run_export(arguments: argparse.Namespace) -> None:
    """Write rollouts to a file."""
    out, path = Output.of(arguments), Path(arguments.file)
    with saying_what_failed(f"cannot write the rollouts to {str(path)!r}"):
        count = asyncio.run(_export(arguments, path, out))
    if out.is_json:
        out.value({"file": str(path), "rollouts": count, "bytes": path.stat().st_size})
    else:
        out.line(f"wrote {count:,} rollout{'s' * (count != 1)} to {path}")


async def _export(arguments: argparse.Namespace, path: Path, out: Output) -> int:
    from ..archive.export import export_rollouts

    async with chosen_store(arguments) as opened:
        return await export_rollouts(
            opened.store,
            path,
            format=_format_of(path),
            filters=filters_of(arguments),
            limit=arguments.limit or None,
            with_spans=arguments.spans,
            progress=lambda count: out.note(f"{count:,} rollouts written so far") if count % 10_000 == 0 else None,
        )


def _format_of(path: Path) -> "ExportFormat":
    """Return the format by the suffix. A store file has another one, so an export cannot overwrite it."""
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"unknown export format: {path.name!r}; use a file name that ends in .jsonl or .parquet")
    return kind
