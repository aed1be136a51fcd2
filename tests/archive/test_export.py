"""Exports of rollouts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from sharpen import rollout
from sharpen.emitter import emit_message
from sharpen.errors import InvalidInputError, StoreError
from sharpen.store import InMemoryLightningStore
from sharpen.types import Attempt, EnqueueRolloutRequest, PaginatedResult
from tests.archive.internals import export_rollouts, exported_rollouts, matching_rollouts
from tests.errors import raises

from .rollout_scenes import play


@rollout
def scored(task: dict[str, Any]) -> float:
    emit_message(f"task {task['n']}")
    if task["n"] == 2:
        raise ValueError("not this one")
    return float(task["n"]) / 10


@pytest.fixture
async def store() -> InMemoryLightningStore:
    made = InMemoryLightningStore()
    for number in range(4):
        await play(made, scored, {"n": number, "text": "ä\n\x00"}, rollout_id=f"ro-{number}", mode="train")
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def test_lines_hold_rollouts_with_their_attempts_and_errors(
    store: InMemoryLightningStore, tmp_path: Path
) -> None:
    path = tmp_path / "all.jsonl"
    assert await export_rollouts(store, path, format="jsonl") == 4
    found = lines(path)
    assert [each["rollout_id"] for each in found] == ["ro-0", "ro-1", "ro-2", "ro-3"]
    assert found[3]["input"] == {"n": 3, "text": "ä\n\x00"}
    assert (found[3]["reward"], found[3]["error"], "spans" in found[3]) == (0.3, None, False)
    assert (found[2]["status"], found[2]["error"]) == ("failed", "ValueError: not this one")
    assert [each["status"] for each in found[2]["attempts"]] == ["failed"]


async def test_spans_come_along_where_they_are_asked_for(store: InMemoryLightningStore, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    filters: Any = {"reward_min": 0.1, "order": "reward_high"}
    assert await export_rollouts(store, path, format="jsonl", filters=filters, limit=1, with_spans=True) == 1
    [only] = lines(path)
    assert only["rollout_id"] == "ro-3"
    assert {span["name"] for span in only["spans"]} == {"sharpen.message", "sharpen.reward"}


async def test_a_table_holds_the_same(store: InMemoryLightningStore, tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    assert await export_rollouts(store, path, format="parquet", with_spans=True) == 4
    rows = parquet.read_table(path).to_pylist()
    assert [(row["rollout_id"], row["reward"]) for row in rows][3] == ("ro-3", 0.3)
    assert json.loads(rows[3]["input"]) == {"n": 3, "text": "ä\n\x00"}
    assert (rows[2]["error"], rows[2]["num_attempts"]) == ("ValueError: not this one", 1)
    assert [span["name"] for span in rows[3]["spans"]] == ["sharpen.message", "sharpen.reward"]
    assert json.loads(rows[3]["spans"][0]["attributes"]) == {"sharpen.message.body": "task 3"}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_nothing_to_export_is_an_empty_file(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / f"none.{kind}"
    assert await export_rollouts(InMemoryLightningStore(), path, format=kind) == 0
    assert path.exists()
    assert kind == "jsonl" or parquet.read_table(path).num_rows == 0


async def test_more_than_a_page_is_exported(tmp_path: Path) -> None:
    store = InMemoryLightningStore()
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(number) for number in range(1203)])
    told: list[int] = []
    count = await export_rollouts(store, tmp_path / "x.jsonl", format="jsonl", progress=told.append)
    assert (count, told) == (1203, [500, 1000])
    assert [each["input"] for each in lines(tmp_path / "x.jsonl")] == list(range(1203))
    assert len([each async for each in matching_rollouts(store, limit=700)]) == 700


class Failing(InMemoryLightningStore):
    async def query_attempts(self, rollout_id: str, **options: Any) -> Any:
        if rollout_id == "ro-2":
            raise StoreError("the store went away")
        return await super().query_attempts(rollout_id, **options)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_an_export_that_fails_leaves_the_old_file_and_nothing_else(kind: Any, tmp_path: Path) -> None:
    store, path = Failing(), tmp_path / f"out.{kind}"
    path.write_text("old")
    for number in range(4):
        await store.start_rollout("x", rollout_id=f"ro-{number}")
    with raises(StoreError, "went away"):
        await export_rollouts(store, path, format=kind)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


async def test_a_place_that_cannot_be_written_is_named(store: InMemoryLightningStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        await export_rollouts(store, tmp_path / "no" / "x.jsonl", format="jsonl")
    with pytest.raises(InvalidInputError):
        await export_rollouts(store, tmp_path, format="jsonl")


async def test_rollouts_can_be_taken_one_by_one(store: InMemoryLightningStore) -> None:
    found = [each async for each in exported_rollouts(store, {"status_in": ["failed"]}, with_spans=True)]
    assert [(each.rollout.rollout_id, each.error) for each in found] == [("ro-2", "ValueError: not this one")]


class _Counting(InMemoryLightningStore):
    """Counts who is asked about, and how many at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.now = self.most = 0

    async def query_attempts(self, rollout_id: str, **options: Any) -> PaginatedResult[Attempt]:
        self.asked.append(rollout_id)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return await super().query_attempts(rollout_id, **options)


async def test_attempts_are_asked_for_at_once_and_only_where_there_can_be_some() -> None:
    store = _Counting()
    ids = [f"ro-{number:02}" for number in range(40)]
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=each, rollout_id=each) for each in ids])
    claimed = [each.rollout_id for each in await store.dequeue_many_rollouts(limit=30, worker_id="w")]
    found = [each async for each in exported_rollouts(store)]
    assert [each.rollout.rollout_id for each in found] == ids
    assert [len(each.attempts) for each in found] == [int(each in claimed) for each in ids]
    assert store.asked == claimed
    assert store.most > 5
