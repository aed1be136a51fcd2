"""`sharpen doctor`."""

import json
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from sharpen.cli import main
from tests.cli.internals import FEATURES

Text = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))


def examined(capsys: Text, *, code: int = 0) -> dict[str, Any]:
    assert main(["doctor", "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def finding(found: dict[str, Any], name: str) -> dict[str, Any]:
    (each,) = [each for each in found["findings"] if each["name"] == name]
    return dict(each)


def test_a_machine_that_is_fine_is_said_to_be(capsys: Text, tmp_path: Path) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "Sharpen is ready to use." in shown
    assert sys.executable in shown
    assert list(tmp_path.iterdir()) == []  # nothing stays behind


def test_it_loads_neither_torch_nor_a_web_server(capsys: Text) -> None:
    before = set(sys.modules)
    examined(capsys)
    assert not [name for name in set(sys.modules) - before if name.startswith(("torch", "uvicorn", "starlette"))]


def test_every_extra_of_the_package_has_a_feature_or_is_for_developers(capsys: Text) -> None:
    declared = set(metadata.metadata("sharpen").get_all("Provides-Extra") or ())
    assert declared - {"dev", "docs"} == set(FEATURES)


def test_a_missing_package_is_told_with_the_command(capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "pyarrow":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "jinja2" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    features = {each["extra"]: each for each in examined(capsys)["features"]}
    assert features["parquet"]["command"] == "pip install 'sharpen[parquet]'"
    assert not features["dashboard"]["is_installed"]
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "needs pyarrow" in shown
    assert "\n  pip install 'sharpen[parquet]'\n" in shown  # a line of its own, to be copied
    assert "jinja2 (0.1 is older than >=3.1)" in shown


def test_a_missing_requirement_is_broken(capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "uvicorn":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    found = examined(capsys, code=1)
    assert not found["is_fine"]
    assert finding(found, "its packages")["advice"] == "pip install 'uvicorn>=0.34'"


def test_a_folder_that_cannot_be_written_is_broken(
    capsys: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "file"))
    found = examined(capsys, code=1)
    assert finding(found, "store")["state"] == "broken"
    assert "SHARPEN_RUNS" in finding(found, "store")["advice"]


def test_a_full_disk_is_broken(capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 2**20})())
    assert finding(examined(capsys, code=1), "disk")["state"] == "broken"


def test_a_taken_port_is_a_note(capsys: Text) -> None:
    try:
        server = socket.create_server(("127.0.0.1", 4747))
    except OSError:
        server = None  # somebody has it: all the better
    try:
        assert finding(examined(capsys), "port 4747")["state"] == "note"
    finally:
        if server is not None:
            server.close()


def test_values_of_variables_are_not_shown(capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_TOKEN", "a-secret-token")
    main(["doctor"])
    shown = capsys.readouterr().out
    assert "SHARPEN_TOKEN" in shown
    assert "a-secret-token" not in shown


@pytest.mark.slow
def test_torch_is_asked_on_demand(capsys: Text) -> None:
    assert main(["doctor", "--deep", "--json"]) == 0
    gpu = finding(json.loads(capsys.readouterr().out), "GPU")
    assert gpu["text"].startswith("torch ")
    assert "threads" in gpu["text"]
