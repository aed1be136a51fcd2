"""`sharpen store`: serve, stats, prune, backup."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import AccessDeniedError
from sharpen.store import LightningStoreClient, SQLiteStore
from sharpen.types import EnqueueRolloutRequest

from .rollout_run import Terminal


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("FORCE_COLOR", "SHARPEN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys)


async def _filled(path: Path) -> None:
    now = [0.0]
    store = SQLiteStore(path, clock=lambda: now[0])
    made = await store.enqueue_many_rollouts([EnqueueRolloutRequest(number) for number in range(3)])
    await store.cancel_rollouts([made[0].rollout_id])  # at the beginning of time
    await store.close()


def filled(folder: Path) -> str:
    """A store with a rollout that ended long ago and two that wait."""
    asyncio.run(_filled(folder / "store.db"))
    return str(folder / "store.db")


# -- stats, prune, backup ----------------------------------------------------------------------------


def test_stats_say_how_much_a_store_holds(terminal: Terminal, tmp_path: Path) -> None:
    path = filled(tmp_path)
    assert "3 (2 queuing, 1 cancelled)" in terminal.run("store", "stats", path)
    told = terminal.value("store", "stats", path)
    assert (told["total_rollouts"], told["queue_length"]) == (3, 2)


def test_prune_deletes_what_ended_long_ago(terminal: Terminal, tmp_path: Path) -> None:
    path = filled(tmp_path)
    assert "1 rollout\n" in terminal.run("store", "prune", path, "--older-than", "7d", "--yes")
    assert terminal.value("store", "prune", path, "--older-than", "1h", "--yes")["deleted"] == 0
    assert terminal.value("store", "stats", path)["total_rollouts"] == 2


def test_prune_asks_and_deletes_nothing_where_nobody_answers(terminal: Terminal, tmp_path: Path) -> None:
    path = filled(tmp_path)
    terminal.run("store", "prune", path, "--older-than", "7d", code=2)
    assert "--yes" in terminal.said
    terminal.run("store", "prune", path, "--older-than", "soon", code=2)
    assert "such as 7d, 12h or 30min" in terminal.said
    assert terminal.value("store", "stats", path)["total_rollouts"] == 3


def test_a_backup_is_a_store_of_its_own(terminal: Terminal, tmp_path: Path) -> None:
    path, copy = filled(tmp_path), tmp_path / "copy.db"
    told = terminal.value("store", "backup", path, str(copy))
    assert told["bytes"] == copy.stat().st_size
    assert terminal.value("store", "stats", str(copy))["total_rollouts"] == 3
    for target in (str(copy), "no/folder.db"):
        terminal.run("store", "backup", path, target, code=2)
        assert target.split("/")[0] in terminal.said
    terminal.run("store", "backup", "http://127.0.0.1:1", "x.db", code=2)
    assert "http://127.0.0.1:1" in terminal.said


def test_what_is_not_there_is_named(terminal: Terminal) -> None:
    for arguments in (["stats"], ["stats", "nothing.db"], ["prune", "nothing", "--older-than", "1d", "--yes"]):
        terminal.run("store", *arguments, code=3)
    assert "there is no run 'nothing'" in terminal.said


# -- serve -------------------------------------------------------------------------------------------


def serving(folder: Path, *options: str, **environment: str) -> "subprocess.Popen[str]":
    known = {name: value for name, value in os.environ.items() if name != "SHARPEN_TOKEN"}
    return subprocess.Popen(
        [sys.executable, "-m", "sharpen.cli", "store", "served.db", "--port", "0", "--json", *options],
        cwd=folder,
        env={**known, "XDG_STATE_HOME": str(folder / "state"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def status_of(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_served_store_is_found_with_its_token_and_ends_in_order(terminal: Terminal, tmp_path: Path) -> None:
    server = serving(tmp_path)
    try:
        assert server.stdout is not None
        told: dict[str, Any] = json.loads(server.stdout.readline())
        assert told["needs_token"] is True
        [token_file] = (tmp_path / "state").rglob("tokens/*")
        assert token_file.stat().st_mode & 0o077 == 0
        assert terminal.value("store", "stats", told["url"])["total_rollouts"] == 0
        assert status_of(f"{told['url']}/v1/statistics") in (401, 403)
        assert status_of(told["dashboard"]) in (401, 403)
        token = token_file.read_text()
        assert status_of(told["dashboard"], authorization=f"Bearer {token}") == 200
        server.send_signal(signal.SIGTERM)
        rest, noted = server.communicate(timeout=20)
    finally:
        server.kill()
        server.communicate()
    assert (server.returncode, rest) == (143, "")
    assert token not in noted
    assert not token_file.exists()
    assert (tmp_path / "served.db").exists()


async def _enqueue(url: str) -> int:
    client = LightningStoreClient(url)
    try:
        await client.enqueue_rollout("a task")
        return (await client.statistics())["total_rollouts"]
    finally:
        await client.close()


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("given", ["", "chosen-by-the-user"])
def test_a_client_in_python_finds_the_token_of_a_served_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    server = serving(tmp_path, SHARPEN_TOKEN=given)
    try:
        assert server.stdout is not None
        url: str = json.loads(server.stdout.readline())["url"]
        if given:
            with pytest.raises(AccessDeniedError):
                asyncio.run(_enqueue(url))
            monkeypatch.setenv("SHARPEN_TOKEN", given)
        assert asyncio.run(_enqueue(url)) == 1
        assert asyncio.run(_enqueue(url.replace("127.0.0.1", "localhost"))) == 2
    finally:
        server.terminate()
        server.communicate(timeout=20)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["", "chosen-by-the-user"])
def test_a_terminal_shows_a_token_that_was_made_up_and_no_other(tmp_path: Path, given: str) -> None:
    known = {name: value for name, value in os.environ.items() if name != "SHARPEN_TOKEN"}
    environment = known | {"XDG_STATE_HOME": str(tmp_path / "state")} | ({"SHARPEN_TOKEN": given} if given else {})
    screen, end = pty.openpty()
    command = [sys.executable, "-m", "sharpen.cli", "store", "--port", "0"]
    server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=end, stderr=end)
    try:
        os.close(end)
        shown = ""
        while "find the token" not in shown and "SHARPEN_TOKEN" not in shown:
            shown += os.read(screen, 4096).decode()
        files = list((tmp_path / "state").rglob("tokens/*"))
        made_up = [file.read_text() for file in files]
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 143
    finally:
        server.kill()
        server.wait()
        os.close(screen)
    assert len(made_up) == (0 if given else 1)
    assert all(f"dashboard/?token={token}" in shown for token in made_up)
    assert "chosen-by-the-user" not in shown
    assert (tmp_path / "sharpen.db").exists()


def test_a_word_that_is_no_path_is_a_misspelt_command(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("store", "stat", code=2)
    assert "did you mean 'stats'?" in terminal.said
    (tmp_path / "stat").write_text("no store")
    for words in (["stat"], ["./new.db"], ["serve", "new.db"], ["--no-token", "new.db"]):
        terminal.run("store", *words, "--port", "99999", code=2)
        assert "--port is 99999" in terminal.said


def test_a_file_that_can_be_no_store_is_wrong_usage_so_that_nobody_tries_again(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("agent: agent.py:adder\n")
    for place in ("no/folder/x.db", "config.yaml"):
        assert terminal.value("store", "serve", place, code=2)["error"]["type"] == "ConfigError"


def test_a_port_that_is_taken_and_an_open_door_are_refused(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("store", "serve", "--host", "0.0.0.0", "--no-token", code=2)
    assert "--no-token" in terminal.said
    terminal.run("store", "--port", "99999", code=2)
    assert "--port is 99999" in terminal.said
    assert not (tmp_path / "sharpen.db").exists()
