"""The program `sharpen`."""

import subprocess
import sys
from pathlib import Path

import pytest

import sharpen
from sharpen.cli import main


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sharpen.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_it_tells_its_version() -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout.strip()) == (0, f"sharpen {sharpen.__version__}")


def test_without_a_command_it_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "mcp" in capsys.readouterr().out


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mpc"])
    assert ended.value.code == 2
    assert "invalid choice: 'mpc'" in capsys.readouterr().err


def test_a_bad_setting_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["mcp", "--base-dir", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("sharpen mcp: base_dir is ")
    assert error.count("\n") == 1


def test_the_server_ends_with_its_client(tmp_path: Path) -> None:
    ran = run("mcp", "--base-dir", str(tmp_path))
    assert (ran.returncode, ran.stdout) == (0, "")


def test_a_missing_package_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.stdio", None)
    assert main(["mcp", "--base-dir", str(tmp_path)]) == 1
    assert "pip install 'sharpen[mcp]'" in capsys.readouterr().err
