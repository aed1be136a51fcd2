"""The fixtures of every earlier version, and the command line as a program would use it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.cli import main

from ..logs import forget_logging
from .packed import VERSIONS, Packed
from .reading import Command


@pytest.fixture(params=VERSIONS)
def packed(request: pytest.FixtureRequest) -> Packed:
    return Packed(request.param)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs a command with `--json` and returns the value that it prints."""
    for name in ("SHARPEN_LOG", "SHARPEN_CURRENT_ROLE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path))
    forget_logging()

    def run(*words: str) -> Any:
        capsys.readouterr()
        code = main([*words, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return json.loads(printed.out)

    yield run
    forget_logging()
