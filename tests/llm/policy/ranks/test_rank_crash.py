"""Ranks end with their policy and with its process; one that dies is said in words."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from sharpen.llm import TrainingError
from tests.errors import raises
from tests.execution.processes import REPOSITORY, eventually, is_running
from tests.llm.internals import CHECK_EVERY, PolicyServers, RankedPolicy

from .crews import ranked, train

pytestmark = pytest.mark.slow


def train_for_long(policy: RankedPolicy) -> None:
    for step in range(10_000):
        train(policy, step)


@pytest.mark.parametrize("delay_seconds", [None, 0.0, 0.15])
def test_a_killed_rank_is_a_clear_error_and_no_process_stays(model_folder: Path, delay_seconds: float | None) -> None:
    """Whether it dies while nobody asks anything of it, or at any moment of the training."""
    policy = ranked(model_folder)
    train(policy, 0)
    (pid,) = policy.pids

    def kill() -> None:
        time.sleep(delay_seconds or 0)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    if delay_seconds is None:
        killer.join()
    with raises(TrainingError, 1, pid, "SIGKILL"):
        train_for_long(policy)
    with pytest.raises(TrainingError):
        policy.logprobs([[1, 2, 3]] * 4)
    assert not is_running(pid)
    policy.close()


def test_a_rank_that_crashes_has_last_words(model_folder: Path) -> None:
    with ranked(model_folder) as policy:
        os.kill(policy.pids[0], signal.SIGSEGV)
        with raises(TrainingError, "SIGSEGV"):
            train(policy, 0)


def test_closing_ends_the_ranks(model_folder: Path) -> None:
    policy = ranked(model_folder)
    (pid,) = policy.pids
    assert is_running(pid)
    policy.close()
    policy.close()
    assert not is_running(pid)
    with pytest.raises(TrainingError):
        train(policy, 0)


PARENT = """
import sys
from pathlib import Path
from tests.llm.policy.ranks.crews import ranked, train
if __name__ != "__main__":
    raise SystemExit("a rank has run the user's script")
policy = ranked(Path(sys.argv[1]))
print(*policy.pids, flush=True)
while True:
    train(policy, 0)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_die_with_their_parent(model_folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(model_folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pids = [int(each) for each in parent.stdout.readline().split()]
        try:
            assert len(pids) == 1
            assert all(map(is_running, pids))
        finally:
            parent.send_signal(number)
    eventually(lambda: not any(map(is_running, pids)), "the end of the ranks")


class BrokenOff(BaseException):
    """As a run that is cancelled raises it in whatever computes."""


def test_whoever_is_broken_off_leaves_the_ranks_of_one_mind(model_folder: Path) -> None:
    with ranked(model_folder) as policy:
        for delay in (0.0, 0.01, 0.03, 0.1, 0.2):
            thread = threading.Thread(target=train_until_broken_off, args=(policy,))
            thread.start()
            time.sleep(delay)
            while thread.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(BrokenOff))
                thread.join(0.05)
        policy.zero_grad()
        metrics = train(policy, 1)
        assert metrics["grad_norm"] > 0
        for step in range(CHECK_EVERY):  # in one of them all weights are compared
            train(policy, step)


def train_until_broken_off(policy: RankedPolicy) -> None:
    with contextlib.suppress(BrokenOff):
        train_for_long(policy)


def test_every_rank_answers_agents_with_the_newest_weights(model_folder: Path) -> None:
    with ranked(model_folder) as policy, PolicyServers(policy, name="tiny", seed=3) as servers:
        assert len(set(servers.base_urls)) == 2
        train(policy, 0)
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "return_token_ids": True}
        answers = [
            httpx.post(f"{url}/completions", json=body, timeout=60, verify=False).raise_for_status().json()
            for url in servers.base_urls
        ]
        assert answers[0]["choices"][0]["token_ids"] == answers[1]["choices"][0]["token_ids"]
        assert [each["weights_version"] for each in answers] == ["1", "1"]
        urls = servers.base_urls
    for url in urls:
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{url}/models", timeout=5, verify=False)
