"""How fast the dashboard and the command line are on a large store.

    python benchmarks/dashboard.py                    # 1,000,000 rollouts, 2,000,000 spans (made once, kept in --file)
    python benchmarks/dashboard.py --rollouts 50000 --spans 100000
    python benchmarks/dashboard.py --only pages cold  # some measures: help cold pages browser memory commands claims

`sharpen dashboard` runs as a process of its own. A page is measured as its answer over HTTP, and in Chromium from the
call to the moment that it has been painted. "Cold" is the first request after a start, with the store's file dropped
from the memory of the system. Prints one JSON line per figure.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import dashboard_claims
from dashboard_store import MANY_SPANS, generate

SHARPEN = str(Path(sys.executable).parent / "sharpen")
REPEATS, STARTS = 7, 3
VIEWS = 500
MEASURES = ("help", "cold", "pages", "browser", "memory", "commands", "claims")


class Page(NamedTuple):
    """A page by its words, its address below the dashboard, and within how many milliseconds it should be there."""

    words: str
    path: str
    goal_ms: int | None


def main() -> None:
    arguments = _arguments()
    path = Path(arguments.file or f"/tmp/sharpen-dashboard-{arguments.rollouts}-{arguments.spans}.db")
    if not path.exists():
        seconds = _seconds(lambda: generate(path, rollouts=arguments.rollouts, spans=arguments.spans))
        _print("store made", seconds=round(seconds, 1), megabytes=round(path.stat().st_size / 1e6))
    wanted, pages = arguments.only or MEASURES, _pages(path)
    if "help" in wanted:
        _print_times("sharpen --help", lambda: _run("--help"), 300)
    if "cold" in wanted:
        _measure_cold(path, pages)
    if wanted_of_one := {"pages", "browser", "memory"}.intersection(wanted):
        with _dashboard(path) as (url, process_id):
            _measure_warm(url, process_id, pages, wanted_of_one, arguments.chromium)
    if "commands" in wanted:
        _measure_commands(path)
    if "claims" in wanted:
        for line in dashboard_claims.measure(seconds=6.0, rounds=3):
            print(json.dumps(line), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--spans", type=int, default=2_000_000)
    parser.add_argument("--file", help="the store, made if it does not exist")
    parser.add_argument("--only", nargs="+", choices=MEASURES, metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument("--chromium", default=os.environ.get("CHROMIUM") or shutil.which("chromium"))
    return parser.parse_args()


def _pages(path: Path) -> list[Page]:
    run = f"/runs/{quote(path.name)}"
    rollouts = f"{run}/rollouts"
    return [
        Page("first page", "/", 300),
        Page("list", rollouts, 300),
        Page("list by status and mode", f"{rollouts}?status=failed&mode=val", 500),
        Page("list by reward", f"{rollouts}?reward_min=0.2&reward_max=0.21", 500),
        Page("list, highest reward first", f"{rollouts}?order=reward_high", 500),
        Page("list, finished last first", f"{rollouts}?order=finished", 500),
        Page("list by worker", f"{rollouts}?worker=worker-03", 500),
        Page("list by a worker of 5 rollouts", f"{rollouts}?worker=worker-rare", 500),
        Page("list by a word that many have", f"{rollouts}?q=rain", 500),
        Page("list by a word that none has", f"{rollouts}?q=nowhere-to-be-found", 500),
        Page("workers", f"{run}/workers", None),
        Page("points of the curves", f"{run}/curves.json", None),
        Page("rollout of 2,000 spans", f"{rollouts}/{MANY_SPANS}", 1000),
    ]


# -- pages -------------------------------------------------------------------------------------------


def _measure_cold(path: Path, pages: list[Page]) -> None:
    """Each page as the very first request of a dashboard."""
    chosen = [
        page for page in pages if page.words in ("first page", "list by status and mode", "rollout of 2,000 spans")
    ]
    starts: list[float] = []
    for page in chosen:
        times: list[float] = []
        for _ in range(STARTS):
            _forget(path)
            began = time.perf_counter()
            with _dashboard(path) as (url, _):
                starts.append((time.perf_counter() - began) * 1000)
                times.append(_seconds(lambda url=url, page=page: _get(url + page.path)) * 1000)  # type: ignore[misc]
        _print(f"{page.words}, cold", **_summary(times), goal_ms=page.goal_ms)
    _print("start of the dashboard", **_summary(starts))


def _forget(path: Path) -> None:
    """Drop the file from the memory of the system, as far as it allows that."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _measure_warm(url: str, process_id: int, pages: list[Page], wanted: set[str], chromium: str | None) -> None:
    for page in pages if "pages" in wanted else ():
        _print_times(page.words, lambda page=page: _get(url + page.path), page.goal_ms)  # type: ignore[misc]
    if "browser" in wanted:
        _measure_in_browser(url, [page for page in pages if not page.path.endswith(".json")], chromium)
    if "memory" in wanted:
        _measure_memory(url, process_id, pages)


def _measure_in_browser(url: str, pages: list[Page], chromium: str | None) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        tab = browser.new_page()
        for page in pages:
            _drawn(tab, url + page.path)  # the shipped files are in its cache from here on, as they are for a person
            times = [_drawn(tab, url + page.path) for _ in range(REPEATS)]
            _print(f"{page.words}, in a browser", **_summary(times), goal_ms=page.goal_ms)
        browser.close()


def _drawn(tab: Any, address: str) -> float:
    """Milliseconds until the page is loaded and two frames have been painted."""
    began = time.perf_counter()
    answer = tab.goto(address, wait_until="load")
    assert answer.ok, f"{address} answers {answer.status}"
    tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return (time.perf_counter() - began) * 1000


def _measure_memory(url: str, process_id: int, pages: list[Page]) -> None:
    """Resident memory after each fifth of the views; all pages in turn."""
    found = []
    for view in range(VIEWS):
        _get(url + pages[view % len(pages)].path)
        if (view + 1) % (VIEWS // 5) == 0:
            found.append(round(_resident_bytes(process_id) / 1e6, 1))
    _print(f"memory of the dashboard, after each {VIEWS // 5} of {VIEWS} views", megabytes=found)


def _resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- commands ----------------------------------------------------------------------------------------


def _measure_commands(path: Path) -> None:
    store = ("--store", str(path))
    with tempfile.TemporaryDirectory() as folder:
        export = ("rollouts", "export", *store, "--limit", "10000")
        commands: dict[str, tuple[str, ...]] = {
            "sharpen rollouts list": ("rollouts", "list", *store),
            "sharpen rollouts list --status failed --mode val": (
                *("rollouts", "list", *store, "--status", "failed", "--mode", "val"),
            ),
            "sharpen rollouts list --search nowhere-to-be-found": (
                *("rollouts", "list", *store, "--search", "nowhere-to-be-found"),
            ),
            "sharpen rollouts show (2,000 spans)": ("rollouts", "show", MANY_SPANS, *store),
            "sharpen rollouts export, 10,000": (*export, f"{folder}/rollouts.jsonl"),
            "sharpen rollouts export, 10,000 with spans": (*export, f"{folder}/with.jsonl", "--spans"),
            "sharpen rollouts export, 10,000 as Parquet": (*export, f"{folder}/rollouts.parquet"),
            "sharpen store stats": ("store", "stats", str(path)),
        }
        for words, command in commands.items():
            _print_times(words, lambda command=command: _run(*command), None, repeats=3)  # type: ignore[misc]


def _run(*arguments: str) -> None:
    subprocess.run([SHARPEN, *arguments], check=True, capture_output=True)


# -- measuring ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _dashboard(path: Path) -> Iterator[tuple[str, int]]:
    """Its address and the id of its process."""
    command = [SHARPEN, "dashboard", str(path), "--port", "0", "--no-token"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://[\w.:\[\]]+", process.stdout.readline())
        if found is None:
            raise SystemExit("the dashboard did not say where it is")
        yield found[0], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


def _get(address: str) -> None:
    with urllib.request.urlopen(address, timeout=60) as answer:
        answer.read()


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _print_times(words: str, work: Callable[[], object], goal_ms: int | None, *, repeats: int = REPEATS) -> None:
    work()  # once to warm up
    _print(words, **_summary([_seconds(work) * 1000 for _ in range(repeats)]), goal_ms=goal_ms)


def _summary(times: list[float]) -> dict[str, float]:
    return {"median_ms": round(statistics.median(times), 1), "worst_ms": round(max(times), 1)}


def _print(measure: str, **values: object) -> None:
    known = {name: value for name, value in values.items() if value is not None}
    print(json.dumps({"measure": measure, **known}), flush=True)


if __name__ == "__main__":
    main()
