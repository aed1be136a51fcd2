"""Run folders as a trainer leaves them, with a store of finished rollouts."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from sharpen.runs import RunFolder
from sharpen.store import SQLiteStore

HOSTILE = "<script>alert(1)<"
STARTED = 1_794_700_000.0


def make_run(
    root: Path,
    name: str,
    *,
    reward: float = 0.5,
    steps: int = 3,
    algorithm: str = "APO",
    agent: str = "calculator",
    seed: int = 1,
    error: str | None = None,
    metric: str = "train/loss",
    rollouts: int = 6,
) -> Path:
    """A run that ended."""
    folder = RunFolder.create(run_dir=root / name)
    folder.write_config(config(algorithm, agent, seed))
    for step in range(1, steps + 1):
        value = reward * step / steps
        folder.append_metrics({"step": step, "time": STARTED + step, "val/reward_mean": value, metric: 1.0 / step})
    folder.append_metrics({"time": STARTED + 9, "seconds": 9.0, "rollouts_per_second": 2.5, "rollouts": rollouts})
    filling = threading.Thread(target=asyncio.run, args=(fill(folder.store_path, rollouts),))
    filling.start()  # a browser may have a loop running in this thread
    filling.join()
    folder.log_path.write_text(
        "2026-11-15 22:00:00.000 INFO    trainer: it begins\n"
        f"2026-11-15 22:00:01.000 WARNING [runner-0 77] runner: {HOSTILE}\n"
        "2026-11-15 22:00:02.000 ERROR   trainer.run: it failed\nTraceback (most recent call last):\nValueError: x\n"
    )
    folder.write_result({"status": "failed" if error else "succeeded", "metrics": {}, "seconds": 9.0, "error": error})
    folder.release()
    return folder.path


def config(algorithm: str, agent: str, seed: int) -> dict[str, Any]:
    return {
        "started": "2026-11-15T07:22:59+0000",
        "agent": {"name": agent},
        "components": {
            "algorithm": {"class": f"sharpen.{algorithm}"},
            "store": {"class": "sharpen.store.sqlite.SQLiteStore"},
        },
        "settings": {"seed": seed, "n_runners": 2},
        "datasets": {"train": {"size": 6}},
    }


async def fill(path: Path, rollouts: int) -> None:
    """Rollouts that finished, each with its reward; every third failed."""
    store = SQLiteStore(path)
    for number in range(rollouts):
        started = await store.start_rollout({"question": number}, mode="val", worker_id=f"runner-{number % 2}")
        status = "failed" if number % 3 == 2 else "succeeded"
        await store.complete_attempt(
            started.rollout_id, started.attempt.attempt_id, status=status, reward=number / max(rollouts - 1, 1)
        )
    await store.update_worker("runner-0", {"slots": 2, "note": HOSTILE})
    await store.close()
