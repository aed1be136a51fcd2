"""Jobs are processes: started, watched, stopped, killed, found again. Nothing is trained here."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.llm.internals import ProcessMark

from .calls import Calls, wait_until
from .waiting_rewards import BrokenReward, ExitingReward, WaitingReward

GRPO = {"algorithm": "grpo", "model_name": "model", "dataset": "sums.jsonl"}


def test_a_job_runs_until_it_is_stopped(call: Calls) -> None:
    job_id = call.start_waiting()
    running = call("status", job_id=job_id)
    assert (running["state"], running["action"], running["algorithm"]) == ("running", "train", "grpo")
    assert running["progress"] == {"step": 0, "total_steps": 12, "fraction": 0.0, "eta_seconds": None}
    assert running["elapsed_seconds"] > 0
    mark = call.job(job_id).process()
    stopped = call("stop", job_id=job_id)
    assert (stopped["state"], stopped["was_running"], stopped["was_killed"]) == ("stopped", True, False)
    assert mark is not None
    assert not mark.is_alive()


def test_a_job_that_does_not_stop_is_killed_after_its_grace(call: Calls) -> None:
    call.tool.register_reward_function("stubborn", WaitingReward(ignores_stop=True))
    job_id = call.start_waiting(reward="stubborn")
    stopped = call("stop", job_id=job_id, grace_seconds=0.2)
    assert (stopped["state"], stopped["was_killed"]) == ("stopped", True)


def test_a_killed_job_has_died_and_its_log_is_shown(call: Calls) -> None:
    job_id = call.start_waiting()
    os.kill(call.pid(job_id), signal.SIGKILL)
    wait_until(lambda: call("status")["state"] == "died")
    died = call("status", job_id=job_id)
    assert died["status"] == "success"  # the question was answered
    assert died["error"]["type"] == "JobDied"
    assert "resume: true" in died["error"]["message"]
    assert died["log_tail"][-1] == "busy now"
    after = call("stop", job_id=job_id)
    assert (after["state"], after["was_running"]) == ("died", False)


def test_a_job_that_fails_says_why(call: Calls) -> None:
    call.tool.register_reward_function("broken", BrokenReward())
    answer = call("train", reward="broken", **GRPO)
    assert (answer["status"], answer["state"]) == ("error", "failed")
    assert answer["error"]["type"] == "ConfigError"
    assert "OSError: the garden is closed" in answer["error"]["message"]
    assert "Traceback" in "\n".join(answer["log_tail"])
    assert call("status", log_lines=1)["log_tail"] == answer["log_tail"][-1:]
    assert not (call.base / "output").exists()


def test_a_job_that_leaves_by_itself_has_failed(call: Calls) -> None:
    call.tool.register_reward_function("exiting", ExitingReward())
    answer = call("train", reward="exiting", **GRPO)
    assert (answer["state"], answer["error"]) == ("failed", {"type": "SystemExit", "message": "out of the door"})


def test_a_new_process_finds_an_old_job(call: Calls) -> None:
    job_id = call.start_waiting()
    code = f"""
import json
from sharpen.llm.tools import RLTrainingTool
tool = RLTrainingTool({str(call.base)!r})
print(tool.run({{"action": "list", "kind": "jobs"}}))
print(tool.run({{"action": "stop", "job_id": {job_id!r}}}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed, stopped = (json.loads(line) for line in run.stdout.splitlines())
    assert [(job["job_id"], job["state"]) for job in listed["jobs"]] == [(job_id, "running")]
    assert stopped["state"] == call("status", job_id=job_id)["state"] == "stopped"


def test_a_job_outlives_the_process_that_began_it(call: Calls) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from tests.llm.tool.calls import Calls
from tests.llm.tool.waiting_rewards import WaitingReward
calls = Calls(Path({str(call.base)!r}))
calls.tool.register_reward_function("waiting", WaitingReward())
print(calls.start_waiting(), flush=True)
os.kill(os.getpid(), 9)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == -signal.SIGKILL
    job_id = run.stdout.strip()
    assert call("status", job_id=job_id)["state"] == "running"
    assert call("stop", job_id=job_id)["state"] == "stopped"


def test_a_number_that_another_process_has_now_is_not_the_job(call: Calls) -> None:
    job_id = call.start_waiting()
    job = call.job(job_id)
    process = job.process()
    assert process is not None
    process.kill_group()
    wait_until(lambda: not process.is_alive())
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        record = {"pid": other.pid, "started": process.started}
        (job.folder / "process.json").write_text(json.dumps(record), encoding="ascii")
        assert call("status", job_id=job_id)["state"] == "died"
        assert call("stop", job_id=job_id, grace_seconds=0)["was_running"] is False
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_two_jobs_run_at_once_but_not_into_one_folder(call: Calls) -> None:
    first = call.start_waiting("./output/one")
    second = call.start_waiting("output/two")
    message = call.refused("train", reward="waiting", output_dir="./output/x/../one", wait=False, **GRPO)
    assert first in message
    assert [job["state"] for job in call("list", kind="jobs")["jobs"]] == ["running", "running"]
    assert call("list", kind="jobs", limit=1)["jobs"][0]["job_id"] == second
    call("stop", job_id=first)
    assert call.job(second).state() == "running"
    third = call.start_waiting("./output/one")
    assert call("status")["job_id"] == third


def test_of_calls_at_the_same_moment_one_gets_the_folder(call: Calls) -> None:
    asked = json.dumps({"action": "train", "reward": "waiting", "wait": False, **GRPO})
    with ThreadPoolExecutor(4) as threads:
        answers = [json.loads(text) for text in threads.map(call.tool.run, [asked] * 4)]
    assert sorted(answer["status"] for answer in answers) == ["error", "error", "error", "success"]
    assert len(call("list", kind="jobs")["jobs"]) == 1


def test_a_model_that_a_job_is_writing_cannot_be_read(call: Calls) -> None:
    job_id = call.start_waiting("./other")
    (call.base / "model").rename(call.base / "other")
    message = call.refused("evaluate", model_path="other")
    assert message.startswith("model_path is ")
    assert job_id in message


def test_a_folder_that_a_job_of_another_base_folder_holds_is_refused(call: Calls, base: Path) -> None:
    inner = Calls(base / "inner")
    (base / "inner").mkdir()
    (base / "model").rename(base / "inner" / "model")
    (base / "sums.jsonl").rename(base / "inner" / "sums.jsonl")
    (base / "inner" / "out").mkdir()
    import fcntl

    handle = os.open(base / "inner" / "out", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        answer = inner("train", output_dir="out", **GRPO)
    finally:
        os.close(handle)
    assert answer["error"]["type"] == "JobError"
    assert answer["error"]["message"].startswith("output_dir is ")
    assert str(base / "inner" / "out") in answer["error"]["message"]


def test_a_job_reads_no_model_outside_however_its_folder_is_named(call: Calls, tmp_path: Path) -> None:
    adapter = call.base / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "../outside"}', encoding="ascii")
    (adapter / "adapter_model.safetensors").touch()
    shutil.copytree(call.base / "model", tmp_path / "outside")
    (call.base / "model").rename(call.base / "outside")  # beside the adapter: what the tool sees from where it works
    answer = call("train", algorithm="sft", model_name="adapter", dataset="sums.jsonl")
    assert (answer["state"], answer["error"]["type"]) == ("failed", "ParameterError"), answer
    assert str(tmp_path / "outside") in answer["error"]["message"]
    assert repr(str(call.base)) in answer["error"]["message"]


def test_ctrl_c_while_waiting_stops_the_job(call: Calls) -> None:
    def interrupt() -> None:
        wait_until(lambda: call("list", kind="jobs")["jobs"])
        job = call.job(call("status")["job_id"])
        wait_until(lambda: "busy now" in job.log_tail(5))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        call("train", reward="waiting", **GRPO)
    thread.join()
    assert call("status")["state"] == "stopped"


def test_a_job_is_told_nothing_when_its_starter_dies_at_once(base: Path) -> None:
    run = subprocess.run([sys.executable, "-m", "sharpen.llm.tool.job"], input=b'{"folder": "', check=False, cwd=base)
    assert run.returncode == 0
    assert not (base / ".sharpen").exists()


def test_a_damaged_folder_is_shown_and_stands_in_nobodys_way(call: Calls) -> None:
    job_id = call.start_waiting("./output/one")
    call("stop", job_id=job_id)
    (call.job(job_id).folder / "job.json").write_text('{"acti', encoding="ascii")
    assert "job.json" in call.refused("status", job_id=job_id)
    assert call("list")["jobs"] == [
        {"job_id": job_id, "state": "unreadable", "problem": call.refused("status", job_id=job_id)}
    ]
    assert call.start_waiting("./output/one") != job_id


@pytest.mark.parametrize("content", ["[]", "{}", '{"pid": "x"}', '{"pid": -1, "started": "x"}', "\xff"])
def test_a_damaged_process_file_kills_nobody(call: Calls, content: str) -> None:
    folder = call.base / ".sharpen" / "jobs" / "sft-20260101-000000-abcd"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text('{"action": "evaluate", "created": 0}', encoding="ascii")
    (folder / "process.json").write_text(content, encoding="latin-1")
    for action in ("status", "stop"):
        answer = call(action, job_id=folder.name)
        assert answer["status"] == "error" or answer["state"] == "died"


def test_a_job_that_was_never_started_has_died(call: Calls) -> None:
    folder = call.base / ".sharpen" / "jobs" / "sft-20260101-000000-abcd"
    folder.mkdir(parents=True)
    record: dict[str, Any] = {"action": "evaluate", "created": 0, "starter": {"pid": os.getpid(), "started": "x"}}
    (folder / "job.json").write_text(json.dumps(record), encoding="ascii")
    assert call("status", job_id=folder.name)["state"] == "died"
    mark = ProcessMark.of(os.getpid())
    assert mark is not None
    record["starter"] = {"pid": mark.pid, "started": mark.started}
    (folder / "job.json").write_text(json.dumps(record), encoding="ascii")
    assert call("status", job_id=folder.name)["state"] == "starting"


def test_an_unknown_job_names_those_that_are_there(call: Calls) -> None:
    assert call("status")["error"]["type"] == "JobError"
    for job_id in ("sft-20260101-000000-abcd", "../../../etc", "."):
        refused = call.refused("stop", job_id=job_id)
        assert refused.startswith("job_id is ")
        assert "none" in refused


@pytest.fixture
def small_files() -> Iterator[None]:
    """A disk on which no file can grow beyond 2 kB: writing more fails, as on a full one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_on_a_full_disk_no_job_begins_and_nothing_is_left(call: Calls) -> None:
    call.tool.register_dataset("large", [{"prompt": "x" * 1000, "ground_truth": "1"}] * 9)
    answer = call("train", algorithm="grpo", model_name="model", dataset="large")
    assert answer["status"] == "error"
    assert "File too large" in answer["error"]["message"]
    assert list((call.base / ".sharpen" / "jobs").iterdir()) == []


def test_what_a_killed_process_left_half_written_is_removed(call: Calls) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = call.base / ".sharpen" / "jobs" / f".sft-20260101-000000-abcd.{ended.pid}.tmp"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").touch()
    job_id = call.start_waiting()
    assert [each.name for each in folder.parent.iterdir()] == [job_id]
