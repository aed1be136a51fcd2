"""What the tool says about a job."""

import time
from typing import Any

from .jobs import LIVE, Job

_LINES_OF_A_FAILURE = 20


def describe(job: Job, *, log_lines: int | None = None) -> dict[str, Any]:
    """Where a job stands; of one that has ended, also its result."""
    record, state, progress = job.record(), job.state(), job.progress()
    result = job.result() or {} if state not in LIVE else {}
    answer = {
        **(result.get("result") or {}),
        "job_id": job.id,
        "action": record["action"],
        "state": state,
        "elapsed_seconds": _elapsed(record, state, progress, result),
        "log": str(job.folder / "log"),
    }
    if record.get("download"):
        answer["download"] = record["download"]
    if record["action"] == "train":
        answer |= {"algorithm": record["algorithm"], "output_dir": record["output_dir"]}
        answer |= {"progress": _progress(record, progress, state), "metrics": progress.get("metrics", {})}
    if state in ("failed", "died"):
        answer["error"] = result.get("error") or _death(job, progress)
    lines = log_lines if log_lines is not None else (_LINES_OF_A_FAILURE if "error" in answer else 0)
    return answer | ({"log_tail": job.log_tail(lines)} if lines else {})


def outcome(job: Job) -> dict[str, Any]:
    """The answer to a call that waited for the end of a job."""
    answer = describe(job)
    return {"status": "error" if "error" in answer else "success", **answer}


def summary(job: Job) -> dict[str, Any]:
    """A job in a list."""
    record, state, progress = job.record(), job.state(), job.progress()
    found = {"job_id": job.id, "action": record["action"], "state": state, "created": record.get("created")}
    found |= {name: record[name] for name in ("algorithm", "model", "output_dir") if name in record}
    return found | ({"progress": _progress(record, progress, state)} if record["action"] == "train" else {})


def _progress(record: dict[str, Any], progress: dict[str, Any], state: str) -> dict[str, Any]:
    eta = progress.get("eta_seconds")
    if eta is not None:
        eta = max(0.0, eta - (time.time() - progress["updated"])) if state in LIVE else None
    return {
        "step": progress.get("step", 0),
        "total_steps": progress.get("total_steps", record.get("total_steps")),
        "fraction": progress.get("fraction", 0.0),
        "eta_seconds": eta,
    }


def _elapsed(record: dict[str, Any], state: str, progress: dict[str, Any], result: dict[str, Any]) -> float:
    created = record.get("created", 0.0)
    ended = time.time() if state in LIVE else result.get("ended") or progress.get("updated") or created
    return max(0.0, float(ended - created))


def _death(job: Job, progress: dict[str, Any]) -> dict[str, Any]:
    step = progress.get("step")
    at = f" after step {step}" if step else ""
    return {
        "type": "JobDied",
        "message": f"the process of job {job.id} ended{at} without a result: it was killed, or ran out of memory or "
        "disk. Check its log; to resume a training job from its last checkpoint, repeat the call with resume: true",
    }
