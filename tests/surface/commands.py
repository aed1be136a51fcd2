"""Run commands of `sharpen` in a folder of their own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.cli import main

from ..cli.projects import own_imports
from ..logs import forget_logging

VARIABLES = ("SHARPEN_LOG", "SHARPEN_DEBUG", "SHARPEN_TOKEN", "SHARPEN_GATEWAY_TOKEN", "SHARPEN_DATABASE_URL")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The empty folder that commands work in, with runs of its own and no settings from outside."""
    for name in (*VARIABLES, "SHARPEN_CURRENT_ROLE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    forget_logging()
    with own_imports():
        yield tmp_path
    forget_logging()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it wrote to standard output."""
    capsys.readouterr()
    code = main(arguments)
    return code, capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    ended, output = run(capsys, *arguments, "--json")
    assert ended == code, output
    return json.loads(output)
