"""The health of workers."""

import pytest

from sharpen.types import Worker
from tests.dashboard.internals import health_of, rows_of

NOW = 1000.0


@pytest.mark.parametrize(
    ("status", "heard", "health"),
    [("busy", 995.0, "busy"), ("idle", 995.0, "idle"), ("unknown", 995.0, "idle"), ("busy", 970.0, "quiet"),
     ("busy", 900.0, "late"), ("idle", None, "late")],
)  # fmt: skip
def test_a_worker_that_was_not_heard_of_is_marked(status: str, heard: float | None, health: str) -> None:
    worker = Worker("w", status, last_heartbeat_time=heard)  # type: ignore[arg-type]
    assert health_of(worker, NOW, is_running=True) == health
    assert health_of(worker, NOW, is_running=False) == "gone"


def test_those_that_need_a_look_come_first() -> None:
    workers = [Worker("idle", "idle", last_heartbeat_time=999.0), Worker("late", "busy", last_heartbeat_time=1.0)]
    assert [row.worker.worker_id for row in rows_of(workers, NOW, is_running=True)] == ["late", "idle"]
