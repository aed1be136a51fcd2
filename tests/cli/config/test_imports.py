"""What a configuration names by import path, and how its own code fails."""

from pathlib import Path

import pytest

from sharpen.cli import main
from sharpen.errors import ConfigError
from tests.cli.internals import load
from tests.cli.projects import own_imports, write
from tests.errors import raises


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("x = 1\ndef f(:\n", ("odd.py:2",)),
        ("x = 1\n1 / 0\n", ("odd.py:2", "ZeroDivisionError")),
        ("import json\njson.loads('{')\n", ("odd.py:2", "JSONDecodeError")),
        ("raise SystemExit(3)\n", ("odd.py:1", "SystemExit", 3)),
        ("from json import nothing_such\n", ("odd.py:1", "ImportError")),
    ],
)
def test_a_file_that_cannot_be_imported_is_told_with_its_line(
    tmp_path: Path, code: str, named: tuple[object, ...]
) -> None:
    (tmp_path / "odd.py").write_text(code)
    with own_imports(), raises(ConfigError, *named):
        load("odd.py:agent", tmp_path, "agent")


def test_an_agent_with_a_syntax_error_is_a_wrong_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    path = write(tmp_path, odd__py="def f(:\n")
    with own_imports():
        assert main(["train", str(path), "agent=odd.py:f"]) == 2
    said = capsys.readouterr().err
    assert "odd.py:1: invalid syntax" in said
    assert "unexpected error" not in said
    assert not (tmp_path / "runs").exists()
