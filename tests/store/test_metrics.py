"""What the server counts, as a Prometheus server would read it."""

import asyncio

import pytest

from sharpen.store import SQLiteStore
from sharpen.types import ROLLOUT_STATUSES

from . import prometheus
from .scenes import claim_new, finish_new, run_new, within_patience
from .served import KINDS, LONG, make_store, serve


async def read(served) -> dict[str, prometheus.Family]:
    reply = await served.curl("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return prometheus.parse(reply.body.decode())


async def test_rollouts_are_counted_by_status():
    async with serve() as served:
        await finish_new(served.store)
        await finish_new(served.store, status="failed")
        await run_new(served.store)
        await claim_new(served.store)
        await served.store.enqueue_rollout("waits")
        families = await read(served)
    expected = dict.fromkeys(ROLLOUT_STATUSES, 0) | dict.fromkeys(
        ("succeeded", "failed", "running", "preparing", "queuing"), 1
    )
    assert families["sharpen_store_rollouts"].kind == "gauge"
    assert families["sharpen_store_rollouts"].samples == {f'status="{s}"': n for s, n in expected.items()}
    assert families["sharpen_store_queue_length"].samples == {"": 1}
    assert families["sharpen_store_open_attempts"].samples == {"": 2}
    assert families["sharpen_store_total_spans"].samples == {"": 1}


@pytest.mark.parametrize("kind", KINDS)
async def test_only_attempts_that_are_there_are_counted_as_open(kind, tmp_path):
    async with serve(make_store(kind, tmp_path)) as served:
        rollout = await served.store.enqueue_rollout("task")
        await served.store.update_rollout(rollout.rollout_id, status="running")
        await run_new(served.store)
        families = await read(served)
    assert families["sharpen_store_rollouts"].samples['status="running"'] == 2
    assert families["sharpen_store_open_attempts"].samples == {"": 1}


async def test_requests_are_counted_by_method_and_status_also_when_they_fail():
    async with serve(token="t0ken", headers={"authorization": "Bearer t0ken"}) as served:
        for _ in range(3):
            await served.curl("POST", "/v1/rollouts", {"input": 1})
        await served.curl("POST", "/v1/rollouts", {"colour": "red"})
        await served.curl("GET", "/v1/rollouts/nobody")
        await served.curl("GET", "/v1/nowhere")
        await served.curl("GET", "/v1/statistics", headers={"authorization": "Bearer wrong"})
        await served.curl("GET", "/health")
        families = await read(served)
        again = await read(served)
    requests = families["sharpen_store_requests_total"]
    assert requests.kind == "counter"
    assert requests.samples == {
        'method="enqueue_rollout",status="200"': 3,
        'method="enqueue_rollout",status="400"': 1,
        'method="get_rollout_by_id",status="404"': 1,
        'method="other",status="404"': 1,
        'method="other",status="401"': 1,
        'method="health",status="200"': 1,
    }
    assert again["sharpen_store_requests_total"].samples['method="metrics",status="200"'] == 1
    assert families["sharpen_store_request_seconds_total"].samples['method="enqueue_rollout"'] > 0


async def test_large_figures_are_exact(tmp_path):
    async with serve(SQLiteStore(tmp_path / "store.db")) as served:
        await served.store.enqueue_rollout("x" * 1_234_567)
        size = (await served.store.statistics())["size_bytes"]
        assert size > 1_234_567
        assert (await read(served))["sharpen_store_size_bytes"].samples == {"": size}


async def test_requests_under_way_are_seen():
    async with serve() as served:
        polls = [
            asyncio.ensure_future(served.curl("POST", "/v1/queue:claim", {"wait_seconds": LONG})) for _ in range(3)
        ]
        await served.curl.polls(3)
        for _ in polls:
            await served.store.enqueue_rollout("task")
        for poll in polls:
            await within_patience(poll)
        await served.curl.polls(0)


@pytest.mark.parametrize(
    "text",
    [
        "a 1\n",
        "# HELP a x\na 1\n",
        "# HELP a x\n# TYPE a gauge\na 1",
        "# HELP a x\n# TYPE a gauge\nb 1\n",
        "# HELP a x\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a x\n# TYPE a counter\na 1\n",
        '# HELP a x\n# TYPE a gauge\na{b="c} 1\n',
        "# HELP a x\n# TYPE a gauge\na many\n",
    ],
)
def test_the_reader_of_these_tests_is_strict(text):
    with pytest.raises((AssertionError, ValueError, KeyError)):
        prometheus.parse(text)
