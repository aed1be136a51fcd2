"""What the tests of strategies share: nothing may be left of a run."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.execution.internals import pool

from .processes import child_pids, eventually, is_running


def children() -> set[int]:
    """The child processes of this one that live, without those that wait for the next run."""
    return {pid for pid in set(child_pids()) - pool.pids if is_running(pid)}


def sockets() -> set[str]:
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(file)
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("sharpen-")}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process, thread or socket stays behind; spares are put away first."""
    pool.close()
    before = children(), sockets(), threads()
    yield
    pool.close()
    eventually(lambda: children() <= before[0], "no process is left", 10)
    eventually(lambda: threads() <= before[2], "no thread is left", 10)
    eventually(lambda: sockets() <= before[1], "no socket is left", 10)


@pytest.fixture
def no_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the run itself needs is started."""
    monkeypatch.setenv("SHARPEN_WARM", "0")


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"
