"""`sharpen gateway`: what it is made of, and its life as a process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sharpen.cli import main

Text = pytest.CaptureFixture[str]
MODELS = "model_list:\n  - {name: small, base_url: 'http://127.0.0.1:9/v1', api_key: 'env:KEY'}\n"


@pytest.fixture(autouse=True)
def without_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHARPEN_TOKEN", "SHARPEN_GATEWAY_TOKEN", "SHARPEN_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "gateway.yaml").write_text(MODELS)
    return str(tmp_path / "gateway.yaml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "model_list"),
        (["--base-url", "http://127.0.0.1:9/v1"], "--base-url and --api-key need --model"),
        (["--model", "small", "--api-key", "sk-a-real-key"], "write --api-key env:NAME"),
        (
            ["FILE", "num_retry=2"],
            "override num_retry: a gateway has no option 'num_retry'. Did you mean 'num_retries'?",
        ),
        (["FILE", "store=memory"], "a gateway has no option 'store'"),
        (["FILE", "--port", "70000"], "--port is 70000"),
        (["FILE", "--host", "0.0.0.0"], "set SHARPEN_GATEWAY_TOKEN"),
        (["FILE", "--store", "store.db"], "--store is 'store.db'"),
        (["FILE", "--store", "https://store.example"], "https://store.example"),
        (["FILE", "--store", "env:NO_SUCH_VARIABLE"], "the environment variable NO_SUCH_VARIABLE is not set"),
        (["num_retries=2", "--model", "small"], "entry 1 of model_list"),
    ],
)
def test_a_gateway_that_cannot_be_says_why(arguments: list[str], words: str, file: str, capsys: Text) -> None:
    assert main(["gateway", *(file if each == "FILE" else each for each in arguments)]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "sk-a-real-key" not in told


def test_what_is_wrong_in_its_file_is_told_with_its_line(tmp_path: Path, capsys: Text) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(MODELS + "timeout: soon\n")
    assert main(["gateway", str(path)]) == 2
    assert "gateway.yaml:3:1: timeout is 'soon'" in capsys.readouterr().err
    path.write_text(MODELS + "  - {name: b, base_ulr: x}\n")
    assert main(["gateway", str(path)]) == 2
    assert "gateway.yaml:3:5: entry 2 of model_list: it has the unknown key 'base_ulr'" in capsys.readouterr().err
    path.write_text("- a list\n")
    assert main(["gateway", str(path)]) == 2
    assert "gateway.yaml:1: the file contains a list" in capsys.readouterr().err


def test_it_waits_for_its_store_and_ends_by_a_signal(file: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sharpen.cli", "gateway", file, "--store", "http://127.0.0.1:9", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    assert process.stderr is not None
    assert "waiting for a store server at http://127.0.0.1:9" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, told = process.communicate(timeout=30)
    assert (process.returncode, out) == (143, "")
    assert "Traceback" not in told


@pytest.mark.slow
def test_it_is_told_as_json_which_models_it_has(file: str, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "SHARPEN_GATEWAY_TOKEN": "a-token"}
    started = []
    try:
        for words in (["store", "serve", str(tmp_path / "store.db"), "--port", "0"], ["gateway", file, "--port", "0"]):
            where = ["--store", json.loads(started[0].stdout.readline())["url"]] if started else []
            command = [sys.executable, "-m", "sharpen.cli", *words, *where, "--json"]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path))
        told = json.loads(started[1].stdout.readline())
        assert (told["models"], told["needs_token"]) == (["small"], True)
        for process in reversed(started):
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
    finally:
        for process in started:
            process.kill()
            process.communicate()
