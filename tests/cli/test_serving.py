"""`sharpen dashboard` and `sharpen serve`: servers that somebody starts and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharpen.cli import main
from tests.cli.internals import make_parser
from tests.llm.internals import parser as server_parser

Text = pytest.CaptureFixture[str]


class Started:
    """A command in a process of its own."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        environment = {**{name: text for name, text in os.environ.items() if name != "SHARPEN_TOKEN"}, **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sharpen.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def first_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, number: int) -> tuple[int, str]:
        """Its exit code, and all that it wrote to standard error."""
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=30)
        return self.process.returncode, told


def get(url: str, token: str | None = None) -> int:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_dashboard_lets_in_who_has_its_address_and_ends_with_open_streams(tmp_path: Path) -> None:
    started = Started("dashboard", "--port", "0", SHARPEN_RUNS=str(tmp_path))
    url, _, token = started.first_line().partition("?token=")
    assert len(token) > 20
    assert get(url) == 401
    assert get(url, token) == 200
    stream = urllib.request.urlopen(  # it stays open
        urllib.request.Request(f"{url}events", headers={"authorization": f"Bearer {token}"}), timeout=20
    )
    code, told = started.end(signal.SIGINT)
    stream.close()
    assert code == 130
    assert "read-only" in told
    assert "Traceback" not in told
    assert token not in told


def test_a_dashboard_without_a_token_is_open_and_ends_by_sigterm(tmp_path: Path) -> None:
    started = Started(
        "dashboard", "--port", "0", "--no-token", "--json", SHARPEN_RUNS=str(tmp_path), SHARPEN_TOKEN="a-token"
    )
    told = json.loads(started.first_line())
    assert told["source"] == str(tmp_path)
    assert not told["can_edit"]
    assert get(told["url"]) == 200
    assert started.end(signal.SIGTERM)[0] == 143


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["no-such-run"], 3, "there is no run 'no-such-run'"),
        (["--port", "70000"], 2, "--port is 70000"),
        (["--host", "0.0.0.0", "--no-token"], 2, "--no-token"),
        (["http://127.0.0.1:x"], 2, "--store is 'http://127.0.0.1:x'"),
    ],
)
def test_a_dashboard_that_cannot_be_says_why(
    arguments: list[str], code: int, words: str, capsys: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path))
    assert main(["dashboard", *arguments, *([] if "--port" in arguments else ["--port", "0"])]) == code
    assert words in capsys.readouterr().err


def test_a_port_that_was_asked_for_must_be_free(taken_port: int, capsys: Text) -> None:
    assert main(["dashboard", "--port", str(taken_port)]) == 1
    assert f"port {taken_port} on 127.0.0.1 is taken" in capsys.readouterr().err


def test_a_dashboard_whose_usual_port_is_taken_takes_another(
    taken_port: int, capsys: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cli.internals import Output, dashboard

    monkeypatch.setattr(dashboard, "DASHBOARD_PORT", taken_port)
    with dashboard._listen("127.0.0.1", None, Output()) as bound:
        assert bound.getsockname()[1] != taken_port
    assert str(taken_port) in capsys.readouterr().err


def test_the_browser_is_given_no_token_on_its_command_line(monkeypatch: pytest.MonkeyPatch, capsys: Text) -> None:
    from tests.cli.internals import Output, _in_browser

    opened: list[Path] = []

    def browser(url: str) -> bool:
        assert "secret" not in url
        opened.append(Path(url.removeprefix("file://")))
        return True

    monkeypatch.setattr("webbrowser.open", browser)
    with _in_browser("http://127.0.0.1:4748/?token=secret", Output()):
        (page,) = opened
        assert "url=http://127.0.0.1:4748/?token=secret" in page.read_text()
        assert page.stat().st_mode & 0o077 == 0
    assert not page.exists()


def test_serve_has_the_options_of_the_server() -> None:
    words = ["./model", "--port", "9000", "--max-batch", "4", "--no-download", "--token", "env:X"]
    ours, theirs = make_parser().parse_args(["serve", *words]), server_parser().parse_args(words)
    assert vars(theirs).items() <= vars(ours).items()


def test_serve_says_what_is_wrong_before_it_loads_a_model(taken_port: int, capsys: Text) -> None:
    assert main(["serve", "./no-model", "--port", str(taken_port)]) == 1
    assert "is taken" in capsys.readouterr().err
    assert main(["serve", "./no-model", "--token", "env:NO_SUCH_VARIABLE"]) == 2
    assert "there is no such variable" in capsys.readouterr().err


@pytest.mark.slow
def test_a_served_model_answers_and_ends_with_ctrl_c() -> None:
    from sharpen.llm import demo_model

    started = Started("serve", demo_model(), "--port", "0", "--name", "small")
    line = started.first_line()
    assert line.startswith("small is served at http://127.0.0.1:")
    url = line.split(" at ")[1].split(" ")[0]
    assert get(f"{url}/models") == 200
    code, told = started.end(signal.SIGINT)
    assert code == 130
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("address", "name"),
    [("http://me:hunter2@host:4747/x", "host:4747"), ("https://host", "host"), ("http://[::1]:80", "[::1]:80")],
)
def test_a_served_store_is_called_by_its_host_without_a_login(address: str, name: str) -> None:
    from tests.cli.internals import _name_of

    assert _name_of(address) == name
