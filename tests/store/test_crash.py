"""Store servers, their workers and their database are killed with SIGKILL at random moments, again and again.

Nothing that was acknowledged is lost, every rollout finishes once, and what a dead worker held is tried again.
"""

import asyncio
from pathlib import Path

import pytest

from sharpen.store import LightningStoreClient

from .crash_scene import WORKER, play
from .crash_worker import CONFIG
from .databases import in_file, own_database
from .processes import child, server_process
from .scenes import PATIENCE_SECONDS

HOLDER = Path(__file__).with_name("spool_child.py")
SERVERS = ("postgres", "redis")


async def test_nothing_is_lost_when_server_and_workers_are_killed(tmp_path):
    scene = await play(tmp_path, in_file(tmp_path), seconds=8, workers=2)
    assert scene.kills >= 3
    assert len(scene.facts.order) >= 20


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_is_lost_when_server_and_workers_are_killed_for_minutes(tmp_path):
    scene = await play(tmp_path, in_file(tmp_path), seconds=150, workers=4)
    assert scene.kills >= 30
    assert len(scene.facts.order) >= 200


@pytest.mark.servers
@pytest.mark.parametrize("kind", SERVERS)
async def test_nothing_is_lost_when_the_database_and_the_servers_before_it_are_killed(tmp_path, kind):
    """Two store servers before one database, and a worker that needs none of them."""
    with own_database(kind, tmp_path) as database:
        scene = await play(tmp_path, database, seconds=8, servers=2, workers=2, direct=1)
    assert scene.kills >= 3
    assert len(scene.facts.order) >= 20


@pytest.mark.parametrize("kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.servers) for kind in SERVERS)])
async def test_what_a_killed_worker_held_is_tried_again(tmp_path, ground, kind):
    """One rollout, one worker that dies with it, one that finishes it; the server dies in between."""
    spool = {"SHARPEN_SPOOL": str(tmp_path / "spool")}
    with server_process(ground.database(kind).url) as server:
        await server.start()
        client = LightningStoreClient(server.url, spool_folder=tmp_path / "spool")
        await client.add_resources({})
        rollout = await client.enqueue_rollout("task", config=CONFIG)
        with child(HOLDER, server.url, **spool) as holder:
            assert await holder.hear() == rollout.rollout_id
            server.kill()
            holder.kill()
        await server.start()
        with child(WORKER, "work", server.url, tmp_path / "acks", tmp_path / "stop", "w-next", "1", **spool) as worker:
            (finished,) = await client.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=PATIENCE_SECONDS)
            assert finished.status == "succeeded"
            attempts = [(each.status, each.worker_id) for each in await client.query_attempts(rollout.rollout_id)]
            assert attempts == [("unresponsive", "w-child"), ("succeeded", "w-next")]
            (tmp_path / "stop").touch()
            assert await asyncio.to_thread(worker.wait) == 0
        await client.close()
        assert await server.stop() == 0
