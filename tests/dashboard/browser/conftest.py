"""A real Chromium before real servers of the dashboard, over runs that real programs made."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.dashboard.internals import RunsSource, Source, make_app
from tests.web.internals import ServerThread, address, listen

from .watching import Serve, Watch

NAMES = ("chromium", "chromium-browser", "google-chrome")
REPOSITORY = Path(__file__).parents[3]
expect.set_options(timeout=20_000)  # a busy machine takes its time


def find_chromium() -> str:
    """The one of this machine: nothing is fetched for the tests."""
    given = os.environ.get("CHROMIUM")
    path = shutil.which(given) if given else next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"there is no Chromium: install it, or set CHROMIUM (now {given!r})")
    return path


# For this folder only: while it is open, Playwright keeps a loop running in this thread, which async tests elsewhere
# could not work beside.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    with sync_playwright() as playwright:
        # Root has no sandbox; what is opened here comes from this machine alone.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, serve: Serve) -> Iterator[Page]:
    """A page on which nothing may go wrong: no error, nothing the policy refuses, nothing from elsewhere. It is closed
    before its server."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(20_000)
    opened = context.new_page()
    watch = Watch(opened)
    opened.watch = watch  # type: ignore[attr-defined]
    yield opened
    context.close()
    assert watch.left == []


# -- servers -----------------------------------------------------------------------------------------


def apart(call: Callable[[], Any]) -> Any:
    """In another thread: Playwright keeps a loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout=100)


@contextmanager
def served(source: Source, **tokens: str | None) -> Iterator[str]:
    """The address of a server that runs as long as the block."""
    bound = listen("127.0.0.1", 0)
    url = address("127.0.0.1", bound.getsockname()[1])
    options = {"view_token": None, "edit_token": None} | tokens
    server = ServerThread(lambda stopping: make_app(source, stopping=stopping, **options), bound)
    runner = asyncio.Runner()
    server.start()
    try:
        yield url
    finally:
        server.stop()
        apart(lambda: runner.run(source.close()))
        apart(runner.close)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(source, edit_token=…)` gives the address of a dashboard over a source."""
    with ExitStack() as stack:
        yield lambda source, **tokens: stack.enter_context(served(source, **tokens))


# -- runs --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def made_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of real programs, made once for all workers: see `programs.all_runs`. Nobody may change them."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = shared / "dashboard" / "runs", shared / "dashboard" / "done"
    folder.mkdir(parents=True, exist_ok=True)
    with open(shared / "dashboard" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _run_program("all_runs", str(folder))
            done.touch()
    return folder


def _run_program(name: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"tests.dashboard.browser.programs.{name}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, f"{name} failed:\n{ended.stderr[-3000:]}"


@pytest.fixture(scope="package")
def dashboard(made_runs: Path) -> Iterator[str]:
    """The address of the pages over these runs, open to everybody."""
    with served(RunsSource(made_runs)) as url:
        yield url


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of each worker waits until the runs are made."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(240))
