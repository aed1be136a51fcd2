"""What people see of a run: a line that is kept up to date, plain lines elsewhere, and a warning when nothing moves."""

import asyncio
import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sharpen.algorithm import algo
from sharpen.errors import StoreUnavailableError
from sharpen.store import InMemoryLightningStore
from sharpen.types import FinishedRollouts
from tests.trainer.internals import Progress, RunPlan, TrainingLoop, progress as progress_module

from ..algorithm.workers import complete, until
from .scenes import small_trainer


async def finish(store: InMemoryLightningStore, *rewards: float) -> None:
    for reward in rewards:
        await store.enqueue_rollout(reward, mode="train")
        claimed = await store.dequeue_rollout(worker_id="worker-0")
        assert claimed is not None
        await complete(store, claimed, float)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


async def test_metrics_are_written_along_the_way_and_at_the_end(tmp_path: Path) -> None:
    store, path = InMemoryLightningStore(), tmp_path / "metrics.jsonl"

    async def has_begun() -> bool:
        return bool(lines(path))

    async with Progress(store, RunPlan(run_dir=tmp_path)):
        await until(has_begun)
        await finish(store, 1, 2, 6)
        await store.enqueue_rollout("waits")
    first, last = lines(path)[0], lines(path)[-1]
    assert (first["rollouts"], first["reward_mean"]) == (0, None)
    assert (last["rollouts"], last["queued"], last["reward_mean"], last["run/reward_mean"]) == (3, 1, 3, 3)
    assert last["run/train/reward_mean"] == 3
    assert "train/reward_mean" not in last  # that is of one iteration
    assert last["rollouts_per_second"] > 0


async def test_what_others_left_in_the_store_is_not_counted(tmp_path: Path) -> None:
    store, path = InMemoryLightningStore(), tmp_path / "metrics.jsonl"
    await finish(store, *range(50))
    async with Progress(store, RunPlan(run_dir=tmp_path)):
        await finish(store, 1000)
    assert (lines(path)[-1]["rollouts"], lines(path)[-1]["reward_mean"]) == (1, 1000)


async def test_a_run_that_is_taken_up_counts_all_of_it(tmp_path: Path) -> None:
    store, path = InMemoryLightningStore(), tmp_path / "metrics.jsonl"
    await finish(store, 1)
    async with Progress(store, RunPlan(run_dir=tmp_path, is_resumed=True)):
        await finish(store, 3)
    assert (lines(path)[-1]["rollouts"], lines(path)[-1]["reward_mean"]) == (2, 2)


async def test_a_run_that_is_taken_up_counts_nothing_of_the_runs_before_it(tmp_path: Path) -> None:
    store, path = InMemoryLightningStore(), tmp_path / "metrics.jsonl"
    (tmp_path / "checkpoints").mkdir()
    await finish(store, 1000)
    for is_resumed in (False, True):
        plan = RunPlan(run_dir=tmp_path, is_resumed=is_resumed)
        async with Progress(store, plan):
            await finish(store, 2)
    assert (lines(path)[-1]["rollouts"], lines(path)[-1]["reward_mean"]) == (2, 2)


async def test_in_a_pipe_there_are_plain_lines_a_table_and_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = InMemoryLightningStore()
    async with Progress(store, RunPlan(run_dir=tmp_path)):
        await finish(store, 1, 2)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "\x1b" not in shown.err
    assert re.search(
        r"^queued 0  running 0  done 2  failed 0  reward 1.500  \d+\.\d rollouts/s$", shown.err, re.MULTILINE
    )
    assert re.search(r"│ train │ +2 │ +2 │", shown.err)
    assert shown.err.splitlines()[-1] == f"records: {tmp_path}"


async def test_the_line_says_in_which_iteration_the_algorithm_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = RunPlan(run_dir=tmp_path)
    loop = TrainingLoop(plan)
    assert loop.place == ""
    async with Progress(InMemoryLightningStore(), plan, place=lambda: loop.place):
        loop.report_iteration({}, None)
        loop.begin_iteration()
    assert re.search(r"^iteration 2  queued 0  running 0", capsys.readouterr().err, re.MULTILINE)
    loop.report_iteration({}, None)
    assert loop.place == "2 iterations"


async def test_a_run_in_which_nothing_finishes_says_what_is_in_hand(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="sharpen")
    store = InMemoryLightningStore()

    async def has_warned() -> bool:
        return "nothing has finished" in caplog.text

    async with Progress(store, RunPlan(run_dir=tmp_path, stall_seconds=0.2)):
        await store.enqueue_rollout("waits")
        await store.enqueue_rollout("hangs", rollout_id="ro-stuck")
        for _ in range(2):
            await store.dequeue_rollout(worker_id="worker-7")
        await store.enqueue_rollout("waits")
        await until(has_warned)
    (message, *_) = [record.getMessage() for record in caplog.records]
    assert re.match(r"nothing has finished for \d+ s: 1 rollouts queued, 2 running; ", message)
    assert re.search(r"ro-stuck: running, without a span yet, for \d+\.\d s, attempt 1 at worker-7", message)


async def test_work_that_no_runner_takes_is_pointed_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="sharpen")
    store = InMemoryLightningStore()

    async def has_warned() -> bool:
        return "no heartbeat from any runner" in caplog.text

    async with Progress(store, RunPlan(run_dir=tmp_path, stall_seconds=0.2)):
        await store.enqueue_rollout("waits")
        await until(has_warned)


async def test_warnings_come_with_growing_pauses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="sharpen")
    store = InMemoryLightningStore()
    async with Progress(store, RunPlan(run_dir=tmp_path, stall_seconds=0.2)):
        await store.enqueue_rollout("waits")
        await asyncio.sleep(3)
    assert 1 <= len(caplog.records) <= 4


async def test_an_algorithm_that_thinks_is_no_stall(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="sharpen")
    store = InMemoryLightningStore()
    async with Progress(store, RunPlan(run_dir=tmp_path, stall_seconds=0.2)):
        await finish(store, 1)
        await asyncio.sleep(1.2)
    assert caplog.text == ""


class Faltering(InMemoryLightningStore):
    """A store whose server is away for a moment."""

    failures = 2

    async def finished_rollouts(self, after: int = 0, limit: int = 1000, wait_seconds: float = 0) -> FinishedRollouts:
        if limit == 1000 and self.failures:
            self.failures -= 1
            raise StoreUnavailableError("away")
        return await super().finished_rollouts(after, limit, wait_seconds)


async def test_a_store_that_is_away_for_a_moment_ends_nothing(tmp_path: Path) -> None:
    store, path = Faltering(), tmp_path / "metrics.jsonl"

    async def is_back() -> bool:
        return bool(lines(path))

    async with Progress(store, RunPlan(run_dir=tmp_path)):
        await finish(store, 5)
        await until(is_back)
    assert lines(path)[-1]["rollouts"] == 1


async def test_whoever_only_watches_ends_no_run(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """The disk is full, or the folder has gone: the run goes on."""
    store = InMemoryLightningStore()

    async def has_said_so() -> bool:
        return "progress display failed" in caplog.text

    async with Progress(store, RunPlan(run_dir=tmp_path / "gone")):
        await until(has_said_so)
        await finish(store, 1)
    assert (await store.statistics())["rollouts_by_status"]["succeeded"] == 1


def test_a_run_in_which_nothing_finishes_warns_through_the_trainer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="sharpen")

    @algo
    async def mine(store: Any) -> None:
        async def has_warned() -> bool:
            return "nothing has finished for" in caplog.text

        await store.enqueue_rollout("slow")
        await until(has_warned)

    async def slow(task: Any) -> None:
        while "nothing has finished for" not in caplog.text:
            await asyncio.sleep(0.01)

    small_trainer(algorithm=mine, stall_seconds=0.3).fit(slow)


# -- a terminal --------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
from sharpen.trainer import Trainer

def agent(task):
    sys.stdout.write(f"the agent says {task}\\n")  # at once: two threads print
    sys.stdout.flush()
    time.sleep(0.3)
    return 1.0

trainer = Trainer(strategy="shm", store="memory", algorithm={"type": "Baseline", "span_verbosity": "none"}, n_runners=2)
trainer.fit(agent, list(range(10)))
print("the end", flush=True)
"""


def run_in_terminal(script: Path, *, stdout_is_terminal: bool, code: str = SCRIPT) -> tuple[str, str]:
    """What stands on the screen, and what went to standard output where that is a file."""
    script.write_text(code)
    leader, follower = pty.openpty()
    out = follower if stdout_is_terminal else subprocess.PIPE
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen(
        [sys.executable, str(script)], stdin=follower, stdout=out, stderr=follower, env=environment
    )
    os.close(follower)
    screen = bytearray()
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # the other side has gone
            break
        if not data:
            break
        screen += data
    os.close(leader)
    rest, _ = child.communicate()
    assert child.returncode == 0, screen.decode()
    return screen.decode(), (rest or b"").decode()


def test_in_a_terminal_one_line_is_kept_up_to_date(tmp_path: Path) -> None:
    screen, _ = run_in_terminal(tmp_path / "run.py", stdout_is_terminal=True)
    states = re.findall(r"queued (\d+)  running (\d+)  done (\d+)", screen)
    assert len(states) >= 2
    assert states[-1] == ("0", "0", "10")
    assert "\x1b[2K" in screen  # the line was written over
    assert "\x1b[?25h" in screen  # and the cursor is back
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    assert plain.count("the agent says") == 10
    assert re.search(r"^the end\r?$", plain, re.MULTILINE)


def test_standard_output_in_a_file_stays_the_users_own(tmp_path: Path) -> None:
    screen, out = run_in_terminal(tmp_path / "run.py", stdout_is_terminal=False)
    assert sorted(out.splitlines()) == sorted([f"the agent says {n}" for n in range(10)] + ["the end"])
    assert "the agent says" not in screen


DEBUGGED = """
import sys, time
from sharpen.trainer import Trainer

sys.breakpointhook = lambda: print("PROMPT", type(sys.stdout).__name__, sys.breakpointhook.__name__)

def is_live():
    streams = (sys.stderr, getattr(sys.stderr, "_stream", None))
    return any(type(stream).__name__ == "FileProxy" for stream in streams)

def agent(task):
    while not is_live():
        time.sleep(0.01)
    breakpoint()
    time.sleep(1.5)  # the line would be written again
    return 1.0

Trainer(strategy="shm", store="memory", algorithm={"type": "Baseline", "span_verbosity": "none"}).fit(agent, [1])
assert sys.breakpointhook.__name__ == "<lambda>"
"""


def test_a_debugger_ends_the_live_line(tmp_path: Path) -> None:
    screen, _ = run_in_terminal(tmp_path / "run.py", stdout_is_terminal=True, code=DEBUGGED)
    before, prompt, after = screen.partition("PROMPT")
    assert "\x1b[?25l" in before  # a live line hides the cursor
    assert prompt
    assert "\x1b[?25h" in before  # which is back when the prompt appears
    assert "running 1" not in after
    assert "FileProxy" not in after


class SlowToTell(InMemoryLightningStore):
    """Takes its time to say why a rollout failed."""

    async def get_latest_attempt(self, rollout_id: str) -> Any:
        await asyncio.sleep(0.02)
        return await super().get_latest_attempt(rollout_id)


async def test_a_look_that_is_cut_off_counts_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LOOK_SECONDS", 1.0)
    store, path = SlowToTell(), tmp_path / "metrics.jsonl"
    async with Progress(store, RunPlan(run_dir=tmp_path)):
        for number in range(60):
            await store.enqueue_rollout(number)
            claimed = await store.dequeue_rollout(worker_id="worker-0")
            assert claimed is not None
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
        monkeypatch.setattr(progress_module, "LOOK_SECONDS", 30.0)
    assert lines(path)[-1]["failed"] == 60


# -- numbers of a run that was resumed ---------------------------------------------------------------


async def test_the_rate_of_a_resumed_run_is_that_of_all_its_starts(tmp_path: Path) -> None:
    store, path = InMemoryLightningStore(), tmp_path / "metrics.jsonl"
    (tmp_path / "checkpoints").mkdir()
    async with Progress(store, RunPlan(run_dir=tmp_path)):
        await finish(store, *range(30))
    before = len(lines(path))

    async def has_resumed() -> bool:
        return len(lines(path)) > before

    async with Progress(store, RunPlan(run_dir=tmp_path, is_resumed=True, earlier_seconds=60.0)):
        await until(has_resumed)
        await finish(store, *range(10))
    resumed, last = lines(path)[before], lines(path)[-1]
    assert (resumed["rollouts"], resumed["rollouts_per_second"]) == (30, 0)  # nothing has finished since the resume
    assert last["rollouts"] == 40
    assert last["seconds"] > 60
    assert last["rollouts_per_second"] == 40 / last["seconds"]


async def test_a_resumed_run_counts_what_a_store_in_memory_has_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    (tmp_path / "checkpoints").mkdir()
    for is_resumed in (False, True, True):
        plan = RunPlan(run_dir=tmp_path, is_resumed=is_resumed)
        store = InMemoryLightningStore()
        async with Progress(store, plan):
            await finish(store, 1, 3)
    found = lines(path)[-1]
    assert (found["rollouts"], found["run/train/rollouts"], found["reward_mean"]) == (6, 6, 2)
