"""A run that was broken off goes on where it was: the same candidates, and nothing is paid for twice."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from sharpen.callbacks import Callback
from sharpen.errors import ConfigError, RunError
from sharpen.store import InMemoryLightningStore, SQLiteStore
from tests.algorithm.internals import read_records
from tests.algorithm.prompts.scripted_openai import Reply, ScriptedOpenAI
from tests.errors import raises

from .scenes import TWO_SEEDS, add_what_lacks, fit, make, take_what_lacks, tasks

ROOT = Path(__file__).parents[3]
TWO: dict[str, Any] = {
    "initial_resources": TWO_SEEDS,
    "data": (tasks(16, first=96, parts=("plan", "reply")), tasks(16, parts=("plan", "reply"))),
}
MERGING: dict[str, Any] = {"use_merge": True, "max_metric_calls": 150, "seed": 2, "promotion": "mean"}


class BreakOff(Callback):
    """Ends the run as an error of the user's own would."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        if loop.current_iter == self.at:
            raise ValueError("broken off")


def count(store: InMemoryLightningStore) -> int:
    return len(list(asyncio.run(store.query_rollouts())))


def test_a_run_that_is_broken_off_and_resumed_makes_the_same_candidates_for_the_same_price(tmp_path: Path) -> None:
    with ScriptedOpenAI(take_what_lacks) as server:
        whole, store = make(server, **MERGING), InMemoryLightningStore(thread_safe=True)
        fit(whole, tmp_path / "whole", store=store, **TWO)
        asked, spent = len(server.requests), count(store)

        store = InMemoryLightningStore(thread_safe=True)
        for at in (2, 4):
            resume = None if at == 2 else tmp_path / "broken"
            with raises(ValueError, "broken off"):
                fit(
                    make(server, **MERGING),
                    tmp_path / "broken",
                    store=store,
                    callbacks=[BreakOff(at)],
                    resume=resume,
                    **TWO,
                )
        resumed = make(server, **MERGING)
        fit(resumed, tmp_path / "broken", store=store, resume=tmp_path / "broken", **TWO)
    assert any(len(each.parents) == 2 for each in whole.candidates)
    assert resumed.candidates == whole.candidates
    assert resumed.book.best_version == whole.book.best_version
    assert len(server.requests) - asked == asked
    assert count(store) == spent == resumed.cost.rollouts == whole.cost.rollouts
    assert resumed.round == whole.round


def test_a_run_that_ends_in_the_middle_of_an_iteration_goes_on_in_it(tmp_path: Path) -> None:
    def third_fails(request: dict[str, Any]) -> str | Reply:
        return Reply(status=403) if len(server.requests) == 3 else add_what_lacks(request)

    store = InMemoryLightningStore(thread_safe=True)
    with ScriptedOpenAI(third_fails) as server:
        with raises(RunError, 403):
            fit(make(server), tmp_path, store=store)
        before = count(store)
        resumed = make(server)
        fit(resumed, tmp_path, store=store, resume=tmp_path)
        asked = len(server.requests)
    with ScriptedOpenAI(add_what_lacks) as server:
        whole = make(server)
        fit(whole, tmp_path / "whole")
        assert asked == len(server.requests) + 1  # the one that failed
    assert before < count(store) == whole.cost.rollouts
    assert resumed.candidates == whole.candidates


def test_a_run_that_has_ended_goes_on_with_a_greater_budget(tmp_path: Path) -> None:
    store = InMemoryLightningStore(thread_safe=True)
    with ScriptedOpenAI(add_what_lacks) as server:
        for limit in (47, 80):
            grown = make(server, max_metric_calls=limit)
            fit(grown, tmp_path, store=store, resume=None if limit == 47 else tmp_path)
        asked = len(server.requests)
        whole = make(server, max_metric_calls=80)
        fit(whole, tmp_path / "whole")
        assert len(server.requests) == 2 * asked
    assert grown.candidates == whole.candidates
    assert count(store) == whole.cost.rollouts


def test_a_run_that_is_resumed_with_other_options_says_so(tmp_path: Path) -> None:
    store = InMemoryLightningStore(thread_safe=True)
    with ScriptedOpenAI(add_what_lacks) as server:
        fit(make(server), tmp_path, store=store)
        with raises(ConfigError, "v2"):
            fit(make(server, reflection_minibatch_size=1), tmp_path, store=store, resume=tmp_path)


PROGRAM = """
    import sys
    from openai import AsyncOpenAI
    from sharpen import GEPA
    from tests.algorithm.gepa.scenes import MODEL, fit
    from tests.algorithm.gepa.test_resuming import MERGING, TWO

    url, folder, resume = sys.argv[1:4]
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    gepa = GEPA(reflection_client=client, reflection_model=MODEL, **MERGING)
    fit(gepa, folder, store="sqlite", resume=folder if resume == "yes" else None, **TWO)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_pays_for_nothing_twice(tmp_path: Path) -> None:
    running: subprocess.Popen[bytes] | None = None
    kill_at = [2, 4]

    def deadly(request: dict[str, Any]) -> str | Reply:
        if len(server.requests) in kill_at:
            kill_at.remove(len(server.requests))
            assert running is not None
            os.kill(running.pid, signal.SIGKILL)
        return take_what_lacks(request)

    with ScriptedOpenAI(deadly) as server:
        for life in range(3):
            command = [sys.executable, "-c", textwrap.dedent(PROGRAM), server.base_url, str(tmp_path / "run")]
            # A set of texts is in another order in every life.
            environment = {**os.environ, "PYTHONHASHSEED": str(life)}
            running = subprocess.Popen([*command, "yes" if life else "no"], env=environment, cwd=ROOT)
            assert running.wait(100) == (-signal.SIGKILL if life < 2 else 0)
        asked = len(server.requests)
    with ScriptedOpenAI(take_what_lacks) as server:
        whole = make(server, **MERGING)
        fit(whole, tmp_path / "whole", **TWO)
        assert asked == len(server.requests) + 2  # those whose answers nobody was left to hear

    async def rollouts() -> int:
        store = SQLiteStore(tmp_path / "run" / "store.db")
        try:
            return len(list(await store.query_rollouts()))
        finally:
            await store.close()

    assert asyncio.run(rollouts()) == whole.cost.rollouts
    assert list(read_records(tmp_path / "run")) == whole.candidates
