"""How the tests speak to the tool: in JSON, as an agent does."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharpen.llm import RLTrainingTool
from tests.llm.internals import Job, JobError

Answer = dict[str, Any]


class Calls:
    """A tool whose answers are read from their JSON."""

    def __init__(self, base: Path, **options: Any) -> None:
        self.base = base
        self.tool = RLTrainingTool(base, **options)

    def __call__(self, action: str, **parameters: Any) -> Answer:
        answer = json.loads(self.tool.run(json.dumps({"action": action, **parameters})))
        assert answer["status"] in ("success", "error")
        return dict(answer)

    def refused(self, action: str, **parameters: Any) -> str:
        """The message of a call that must be refused."""
        answer = self(action, **parameters)
        assert answer["status"] == "error", answer
        return str(answer["error"]["message"])

    def job(self, job_id: str) -> Job:
        return Job(self.base / ".sharpen" / "jobs" / job_id)

    def pid(self, job_id: str) -> int:
        process = self.job(job_id).process()
        assert process is not None
        return process.pid

    def start_waiting(self, output_dir: str = "./output/grpo", reward: str = "waiting") -> str:
        """A job that runs until it is ended, without training anything."""
        asked = {"algorithm": "grpo", "model_name": "model", "dataset": "sums.jsonl", "wait": False}
        answer = self("train", reward=reward, output_dir=output_dir, **asked)
        assert answer["status"] == "success", answer
        job = self.job(answer["job_id"])
        wait_until(lambda: "busy now" in job.log_tail(5))
        return job.id


def wait_until(is_true: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def end_jobs(base: Path) -> None:
    """No test leaves a process behind."""
    for file in base.glob(".sharpen/jobs/*/process.json"):
        try:
            process = Job(file.parent).process()
        except JobError:
            continue
        if process is not None:
            process.kill_group()
