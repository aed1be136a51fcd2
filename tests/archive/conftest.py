"""Runs of these tests lie in a folder of their own, and leave the log as they found it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..logs import forget_logging


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("SHARPEN_LOG", "SHARPEN_CURRENT_ROLE", "SHARPEN_SERVER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    forget_logging()
    yield tmp_path / "runs"
    forget_logging()
