"""What a run that works has finished by now."""

import asyncio
from pathlib import Path

from sharpen.runs import RunFolder
from sharpen.store import SQLiteStore
from tests.archive.internals import RunEntry, with_live_rollouts

from .run_scenes import write_lines


async def _work(path: Path) -> SQLiteStore:
    store = SQLiteStore(path)
    for number in range(3):
        rollout = await store.start_rollout(number)
        if number:
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    return store


def test_the_count_of_a_run_that_works_is_of_its_store_and_not_behind(tmp_path: Path) -> None:
    async def count() -> int | None:
        folder = RunFolder.create("busy", root=tmp_path)
        folder.write_config({"components": {}})
        write_lines(folder.path / "metrics.jsonl", [{"time": 1.0, "rollouts": 0}])
        store = await _work(folder.store_path)
        entry = RunEntry.of(folder.path)
        assert (entry.state, entry.rollouts) == ("running", 0)  # its metrics are behind
        found = await with_live_rollouts(entry)
        await store.close()
        folder.release()
        ended = RunEntry.of(folder.path)
        assert await with_live_rollouts(ended) == ended  # its result has the number
        return found.rollouts

    assert asyncio.run(count()) == 2


def test_a_count_that_nobody_knows_is_none(tmp_path: Path) -> None:
    folder = RunFolder.create("in-memory", root=tmp_path)
    folder.write_config({"components": {}})
    write_lines(folder.path / "metrics.jsonl", [{"time": 1.0, "rollouts": 0}])
    assert asyncio.run(with_live_rollouts(RunEntry.of(folder.path))).rollouts is None
    folder.release()
