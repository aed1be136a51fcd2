"""Commands and trainers on a store in a database: by its URL, and with its password nowhere to be seen."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharpen import Baseline, LightningStoreClient, Trainer, rollout
from sharpen.types import EnqueueRolloutRequest
from tests.store.internals import open_url

from ..store.servers import PostgresServer, RedisServer, Server, postgres_server, redis_server
from .projects import write
from .rollout_run import Terminal

WITH_SERVER = [pytest.param(kind, marks=pytest.mark.servers) for kind in ("postgres", "redis")]


class Database:
    """A database of its own on a server that others use, too."""

    def __init__(self, server: Server) -> None:
        self.password = server.password
        if isinstance(server, PostgresServer):
            self.url = server.url(server.new_schema())
        else:
            assert isinstance(server, RedisServer)
            self.url = f"{server.url()}?prefix={server.new_prefix()}"

    async def fill(self) -> None:
        now = [0.0]
        store = open_url(self.url, clock=lambda: now[0])
        made = await store.enqueue_many_rollouts([EnqueueRolloutRequest(number) for number in range(3)])
        await store.cancel_rollouts([made[0].rollout_id])  # at the beginning of time
        await store.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    with postgres_server() as postgres, redis_server() as redis:
        yield {"postgres": postgres, "redis": redis}


@pytest.fixture(params=WITH_SERVER)
def database(request: pytest.FixtureRequest, servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database(servers[request.param])
    monkeypatch.setenv("SHARPEN_DATABASE_URL", made.url)
    return made


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("FORCE_COLOR", "SHARPEN_TOKEN", "SHARPEN_GATEWAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys)


def everything_in(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def test_a_database_is_looked_after_by_its_url(database: Database, terminal: Terminal) -> None:
    asyncio.run(database.fill())
    for name in (database.url, "env:SHARPEN_DATABASE_URL"):
        told = terminal.value("store", "stats", name)
        assert (told["total_rollouts"], told["queue_length"]) == (3, 2)
        assert database.password not in json.dumps(told) + terminal.said
    assert len(terminal.value("rollouts", "--store", "env:SHARPEN_DATABASE_URL")["rollouts"]) == 3
    pruned = terminal.value("store", "prune", "env:SHARPEN_DATABASE_URL", "--older-than", "7d", "--yes")
    assert pruned["deleted"] == 1
    terminal.run("store", "backup", "env:SHARPEN_DATABASE_URL", "copy.db", code=2)
    assert "its own tools" in terminal.said
    assert database.password not in terminal.said


def test_a_database_is_served_without_its_password_on_a_command_line(
    database: Database, terminal: Terminal, tmp_path: Path
) -> None:
    asyncio.run(database.fill())
    for words in (["store", "serve", "--port", "0", "--no-token"], ["dashboard", "env:SHARPEN_DATABASE_URL"]):
        more = ["--no-token", "--port", "0"] if words[0] == "dashboard" else []
        process = subprocess.Popen(
            [sys.executable, "-m", "sharpen.cli", *words, *more, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
            cwd=tmp_path,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert ":***@" in line
        page = get(f"{json.loads(line)['url'].rstrip('/')}{'/dashboard/' if words[0] == 'store' else '/'}")
        process.send_signal(signal.SIGTERM)
        rest, told = process.communicate(timeout=30)
        assert process.returncode == 143
        assert database.password not in line + page + rest + told
        assert "Traceback" not in told
    assert not (tmp_path / "sharpen.db").exists()


async def work_through(first: str, second: str) -> None:
    """Two servers of one database: what one is given, the other hands out, and each hears of what the other ends."""
    one, two = LightningStoreClient(first), LightningStoreClient(second)
    try:
        made = await one.enqueue_many_rollouts([EnqueueRolloutRequest(number) for number in range(20)])
        claimed = await asyncio.gather(
            *(
                store.dequeue_many_rollouts(limit=10, worker_id=name, wait_seconds=5)
                for name, store in (("a", one), ("b", two))
            )
        )
        ids = [each.rollout_id for group in claimed for each in group]
        assert sorted(ids) == sorted(each.rollout_id for each in made)
        waiting = asyncio.create_task(one.wait_for_rollouts(rollout_ids=ids, timeout=20))
        for group in claimed:
            for each in group:
                await two.complete_attempt(each.rollout_id, each.attempt.attempt_id, reward=1.0)
        assert len(await waiting) == 20
    finally:
        await one.close()
        await two.close()


def test_several_servers_stand_before_one_database(database: Database, terminal: Terminal, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sharpen.cli", "store", "serve", "--port", "0", "--no-token", "--json"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) for _ in range(2)]
    try:
        urls = [json.loads(each.stdout.readline())["url"] for each in started if each.stdout is not None]
        asyncio.run(work_through(*urls))
        started[0].kill()
        assert terminal.value("store", "stats", urls[1])["rollouts_by_status"]["succeeded"] == 20
        started[1].send_signal(signal.SIGTERM)
        assert started[1].wait(30) == 143
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_gateway_stands_before_a_database(database: Database, terminal: Terminal, tmp_path: Path) -> None:
    models = ["--model", "small", "--base-url", "http://127.0.0.1:9/v1"]
    command = [sys.executable, "-m", "sharpen.cli", "gateway", *models, "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--store", "env:SHARPEN_DATABASE_URL"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert json.loads(get(f"{json.loads(process.stdout.readline())['url']}/health"))["status"] == "ok"
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 143
    assert database.password not in told


@rollout
def doubled(task: int) -> float:
    return task * 2.0


def test_a_run_keeps_its_rollouts_in_a_database(database: Database, terminal: Terminal, tmp_path: Path) -> None:
    trainer = Trainer(algorithm=Baseline(), store=database.url, n_runners=1, dashboard=False)
    result = trainer.fit(doubled, [1, 2, 3, 4])
    asyncio.run(trainer.store.close())
    assert result.metrics["reward_mean"] == 5.0
    assert terminal.value("store", "stats", "env:SHARPEN_DATABASE_URL")["total_rollouts"] == 4
    kept = everything_in(tmp_path / "runs")
    assert database.password not in kept


@pytest.mark.parametrize("spec", ["env:SHARPEN_DATABASE_URL", "${SHARPEN_DATABASE_URL}"])
def test_a_configuration_names_a_database(spec: str, database: Database, terminal: Terminal, tmp_path: Path) -> None:
    config = write(tmp_path / "project")
    config.write_text(config.read_text() + f"store: {spec}\n")
    planned = terminal.run("train", str(config), "--dry-run")
    trained = terminal.run("train", str(config))
    assert terminal.value("store", "stats", "env:SHARPEN_DATABASE_URL")["total_rollouts"] == 5
    kept = everything_in(tmp_path / "runs")
    assert spec in kept
    assert database.password not in planned + trained + terminal.said + kept


# -- without a server --------------------------------------------------------------------------------


def test_runners_are_told_to_go_to_a_server(terminal: Terminal, tmp_path: Path) -> None:
    config = str(write(tmp_path / "project"))
    terminal.run("runner", config, "--store", "postgresql://me:hunter2@db/runs", code=2)
    assert "serve it with `sharpen store serve`" in terminal.said
    assert "hunter2" not in terminal.said


def test_a_file_stays_a_file(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cli.internals import _place

    assert _place(None) == Path("sharpen.db")
    assert _place("sqlite:///a/b.db") == Path("a/b.db")
    monkeypatch.setenv("SHARPEN_DATABASE_URL", "redis://db/0")
    assert _place(None) == _place("") == "redis://db/0"
    assert _place("a.db") == Path("a.db")


def test_what_nobody_stores_in_is_refused_in_words(terminal: Terminal) -> None:
    terminal.run("store", "serve", "mysql://me:hunter2@db/runs", code=2)
    assert "use sqlite:///PATH, postgresql://, redis:// or a plain path" in terminal.said
    terminal.run("store", "stats", "env:NO_SUCH", code=2)
    assert "the environment variable NO_SUCH is not set" in terminal.said
    assert "hunter2" not in terminal.said
