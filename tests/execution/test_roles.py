"""Roles that are started apart, each as a program of its own."""

import asyncio
import os
import pwd
import signal
import stat
import tempfile
import threading

import pytest

from sharpen.execution import ClientServerExecutionStrategy
from sharpen.store import InMemoryLightningStore
from tests.execution.internals import serving
from tests.store.internals import given_token, left_in_file, read_token, token_file
from tests.web.internals import listen

from .bundles import Enqueue, Work
from .processes import eventually, notes, program, wait_for_note


@pytest.fixture
def port() -> int:
    with listen("127.0.0.1", 0) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def surroundings(tmp_path, monkeypatch, port):
    """What both sides are started with."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SHARPEN_TOKEN", raising=False)
    return {"SHARPEN_SERVER_PORT": str(port)}


def role(name, folder, count, surroundings, **more):
    return program("role.py", folder, str(count), **surroundings, SHARPEN_CURRENT_ROLE=name, **more)


@pytest.mark.parametrize("first", ["algorithm", "runner"])
def test_roles_find_each_other_whoever_is_first(tmp_path, surroundings, port, first):
    second = "runner" if first == "algorithm" else "algorithm"
    token = token_file("127.0.0.1", port)
    with role(first, tmp_path, 20, surroundings) as one:
        if first == "algorithm":
            eventually(token.exists, "the token is left")
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
        else:
            eventually(lambda: f"waiting for a store server at http://127.0.0.1:{port}" in one.errors)
        with role(second, tmp_path, 20, surroundings) as two:
            algorithm, runner = (one, two) if first == "algorithm" else (two, one)
            assert algorithm.wait() == 0, algorithm.errors
            assert algorithm.output.split() == ["succeeded"] * 20
            assert not token.exists()
            assert runner.is_alive
            runner.send(signal.SIGINT)
            assert runner.wait() == 0, runner.errors
            assert "interrupted" in runner.output
            assert one.is_gone()
            assert two.is_gone()
    assert len(notes(tmp_path, "start")) == 1


def test_a_token_of_the_users_own_is_left_nowhere(tmp_path, surroundings, port):
    mine = {**surroundings, "SHARPEN_TOKEN": "a-token-of-my-own"}
    with role("algorithm", tmp_path, 5, mine) as algorithm, role("runner", tmp_path, 5, mine) as runner:
        wait_for_note(tmp_path, "start")
        assert not token_file("127.0.0.1", port).exists()
        assert algorithm.wait() == 0, algorithm.errors
        runner.send(signal.SIGTERM)
        assert runner.wait() == 143, runner.errors
        assert "a-token-of-my-own" not in algorithm.errors + runner.errors


def test_a_wrong_token_is_a_clear_error(tmp_path, surroundings):
    right, wrong = ({**surroundings, "SHARPEN_TOKEN": token} for token in ("right", "wrong"))
    with role("algorithm", tmp_path, 1, right), role("runner", tmp_path, 1, wrong) as runner:
        assert runner.wait() == 1
        assert "AccessDeniedError" in runner.errors
        assert "SHARPEN_TOKEN" in runner.errors


def test_a_runner_goes_on_with_the_next_algorithm_and_its_token(tmp_path, surroundings):
    with role("runner", tmp_path, 0, surroundings) as runner:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            with role("algorithm", tmp_path / name, 5, surroundings) as algorithm:
                assert algorithm.wait() == 0, algorithm.errors + runner.errors
                assert algorithm.output.split() == ["succeeded"] * 5
        runner.send(signal.SIGINT)
        assert runner.wait() == 0, runner.errors
    assert len(notes(tmp_path, "start")) == 1


def test_an_agent_on_the_main_thread_goes_on_with_the_next_algorithm_too(tmp_path, surroundings, port):
    strategy = ClientServerExecutionStrategy("runner", server_port=port, main_process="runner", graceful_timeout=1)
    ends = []

    def serve() -> None:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            with role("algorithm", tmp_path / name, 3, surroundings) as algorithm:
                algorithm.wait()
                ends.append(algorithm.output.split())
        strategy.stop()

    serving = threading.Thread(target=serve)
    serving.start()
    strategy.execute(Enqueue(), Work(folder=tmp_path), InMemoryLightningStore())
    serving.join()
    assert ends == [["succeeded"] * 3] * 2
    assert len(notes(tmp_path, "start")) == 1


def test_a_next_algorithm_with_another_token_of_the_users_own_ends_the_runners(tmp_path, surroundings):
    first, second = ({**surroundings, "SHARPEN_TOKEN": token} for token in ("first", "second"))
    with role("runner", tmp_path, 0, first) as runner:
        with role("algorithm", tmp_path, 1, first) as algorithm:
            assert algorithm.wait() == 0, algorithm.errors
        with role("algorithm", tmp_path, 1, second):
            assert runner.wait() == 1
        assert "AccessDeniedError: the store server at" in runner.errors
        assert "SHARPEN_TOKEN" in runner.errors


def test_a_runner_that_still_waits_for_its_server_can_be_stopped(surroundings, port, caplog):
    strategy = ClientServerExecutionStrategy("runner", server_port=port)

    def stop() -> None:
        eventually(lambda: "waiting for a store server" in caplog.text)
        strategy.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    strategy.execute(Enqueue(), Work(), InMemoryLightningStore())
    stopping.join()


def test_an_algorithm_that_is_started_alone_runs_no_runner_here_on_any_thread(surroundings, port):
    began = []

    async def algorithm(store, event):
        began.append("algorithm")
        await asyncio.sleep(0.3)

    async def runner(store, worker_id, event):
        began.append("runner")

    strategy = ClientServerExecutionStrategy("algorithm", main_process="runner", server_port=port)
    strategy.execute(algorithm, runner, InMemoryLightningStore())
    assert began == ["algorithm"]


def test_runners_end_when_the_store_has_gone_for_good(tmp_path, surroundings, monkeypatch, port, caplog):

    monkeypatch.setattr(serving, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0.1)
    with role("algorithm", tmp_path, 3, surroundings) as algorithm:
        strategy = ClientServerExecutionStrategy("runner", server_port=port, graceful_timeout=1, terminate_timeout=2)
        strategy.execute(Enqueue(), Work(folder=tmp_path), InMemoryLightningStore())
        assert algorithm.wait() == 0, algorithm.errors
    assert "the store is gone" in caplog.text


def test_the_token_lies_under_one_name_for_all_names_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    names = {token_file(host, 4747) for host in ("127.0.0.1", "localhost", "0.0.0.0")}
    assert names == {tmp_path / "sharpen" / "tokens" / "127.0.0.1-4747"}
    assert token_file("::", 1) == token_file("[::1]", 1)


def test_the_token_of_a_later_run_stays(tmp_path):
    path = tmp_path / "tokens" / "127.0.0.1-4747"
    with left_in_file(path, "first"):
        assert read_token(path) == "first"
        path.write_text("later")
    assert read_token(path) == "later"


def test_the_token_of_a_killed_run_is_removed_by_the_next_and_that_of_a_living_one_stays(tmp_path, surroundings, port):
    of_killed, of_living = token_file("127.0.0.1", port), token_file("127.0.0.1", 4747)
    with left_in_file(of_living, "living"):
        with role("algorithm", tmp_path, 1, surroundings) as run:
            eventually(of_killed.exists, "the token is left")
            run.send(signal.SIGKILL)
            run.wait()
        assert of_killed.exists()

        def tokens_beside_the_next() -> list[str]:
            with left_in_file(token_file("127.0.0.1", 4748), "next"):
                return sorted(os.listdir(of_living.parent))

        # A child that the killed run was just starting may still hold its files for a moment.
        both = ["127.0.0.1-4747", "127.0.0.1-4748"]
        eventually(lambda: tokens_beside_the_next() == both, "the token of the killed run is removed")
    assert os.listdir(of_living.parent) == []


def test_a_token_that_cannot_be_left_is_said_and_the_run_goes_on(tmp_path, caplog):
    (tmp_path / "tokens").write_text("a file in the way")
    with left_in_file(tmp_path / "tokens" / "127.0.0.1-4747", "secret"):
        assert "SHARPEN_TOKEN" in caplog.text
    assert "secret" not in caplog.text
    assert os.listdir(tmp_path) == ["tokens"]


def test_white_space_around_a_token_of_the_users_own_does_not_count(monkeypatch):
    monkeypatch.setenv("SHARPEN_TOKEN", " mine\n")
    assert given_token() == "mine"
    monkeypatch.setenv("SHARPEN_TOKEN", " \n")
    assert given_token() is None


@pytest.fixture
def no_home(tmp_path, monkeypatch):
    """A user whom the system does not know, with a temporary directory."""

    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_STATE_HOME", "SHARPEN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"sharpen-{os.getuid()}"


def test_without_a_home_the_token_lies_in_a_temporary_folder_of_this_user_alone(no_home):
    path = token_file("127.0.0.1", 4747)
    with left_in_file(path, "secret"):
        assert read_token(path) == "secret"
        assert no_home in path.parents
        assert stat.S_IMODE(no_home.stat().st_mode) == 0o700


def test_a_temporary_folder_that_others_can_write_to_holds_no_token(no_home, caplog):
    no_home.mkdir()
    no_home.chmod(0o777)
    path = token_file("127.0.0.1", 4747)
    with left_in_file(path, "secret"):
        assert "SHARPEN_TOKEN" in caplog.text
        assert not path.exists()
    (no_home / "tokens" / path.name).write_text("somebody else's")
    assert read_token(path) is None


def test_a_token_of_the_users_own_needs_no_folder(no_home, monkeypatch):
    monkeypatch.setenv("SHARPEN_TOKEN", "mine")
    served = serving.ServedRemotely("127.0.0.1", 4747)
    assert (served.address.token, served.address.token_file) == ("mine", None)
    assert not no_home.exists()
