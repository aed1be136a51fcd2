"""Groups of rollouts."""

from sharpen.store import InMemoryLightningStore
from sharpen.types import EnqueueRolloutRequest, Rollout
from tests.archive.internals import task_group


async def enqueued(store: InMemoryLightningStore, *tasks: object, group: str | None = None) -> list[Rollout]:
    metadata = None if group is None else {"group": group}
    return await store.enqueue_many_rollouts([EnqueueRolloutRequest(task, metadata=metadata) for task in tasks])


async def test_a_group_is_what_its_algorithm_called_one() -> None:
    store = InMemoryLightningStore()
    first = await enqueued(store, "a", "b", group="g-1")
    await enqueued(store, "a", "b", group="g-2")
    found = await task_group(store, first[0])
    assert {each.rollout_id for each in found} == {each.rollout_id for each in first}


async def test_without_groups_rollouts_of_the_same_task_stand_together() -> None:
    store = InMemoryLightningStore()
    wanted = [(await enqueued(store, {"question": number % 3}))[0] for number in range(9)]
    found = await task_group(store, wanted[4])
    assert [each.rollout_id for each in found] == [wanted[number].rollout_id for number in (1, 4, 7)]


async def test_a_large_group_is_cut_to_those_nearest() -> None:
    now = [0.0]
    store = InMemoryLightningStore(clock=lambda: now[0])
    made = []
    for number in range(40):
        now[0] = float(number)
        made += await enqueued(store, "task")
    found = await task_group(store, made[20], limit=5)
    assert [each.start_time for each in found] == [18, 19, 20, 21, 22]


async def test_a_rollout_alone_is_its_own_group() -> None:
    store = InMemoryLightningStore()
    [only] = await enqueued(store, "task")
    assert [each.rollout_id for each in await task_group(store, only)] == [only.rollout_id]
