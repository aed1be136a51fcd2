"""What goes in: tasks that survive JSON, and values that are refused with a reason."""

import dataclasses
import datetime
from collections import namedtuple
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pydantic
import pytest

from sharpen.errors import InvalidInputError, TaskError
from sharpen.types import EnqueueRolloutRequest, RolloutConfig
from tests.errors import raises

from .scenes import claim_new, drain, run_new


@dataclasses.dataclass
class Question:
    text: str


PLAIN = [
    None,
    True,
    0,
    -1.5,
    "",
    "héllo\n☃ \x00 😀",
    [],
    {},
    [1, [2, [3]]],
    {"a": {"b": [None, {"c": "d"}]}},
    {"": 1},
    2**53 + 1,
    1e300,
    (),
    (1, ("two", [3.0, ()])),
    {"a": [{"b": (None, True)}]},
    datetime.date(2024, 2, 29),
    datetime.datetime(2024, 1, 2, 3, 4, 5, 6),
    {"when": datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=-3, minutes=-30)))},
    [datetime.time(23, 59, 59, 1), datetime.time(0, tzinfo=datetime.UTC)],
    # Dicts that look like what stands for the above.
    {"sharpen:tuple": [1, (2,)]},
    {"sharpen:date": "2024-01-02"},
    {"sharpen:date": datetime.date(2024, 1, 2)},
    {"sharpen:dict": {"sharpen:dict": {}}},
    {"sharpen:time": "noon", "more": "sharpen:tuple"},
    ["x" * 5000, (1, 2)],  # large ones are kept apart from their rows
]

Pair = namedtuple("Pair", "a b")


class Model(pydantic.BaseModel):
    when: datetime.date


@pytest.mark.parametrize("task", PLAIN, ids=repr)
async def test_a_task_comes_back_equal(store, task):
    rollout = await store.enqueue_rollout(task)
    claimed = await store.dequeue_rollout()
    for found in (rollout, claimed, await store.get_rollout_by_id(rollout.rollout_id)):
        assert found.input == task
        assert repr(found.input) == repr(task)  # also what is equal and of another type


async def test_a_tuple_comes_back_from_every_method_that_gives_rollouts(store):
    task = {"pair": (1, 2), "when": datetime.date(2024, 1, 2)}
    first, second = await store.enqueue_many_rollouts([EnqueueRolloutRequest(task), EnqueueRolloutRequest([1])])
    assert (await store.update_rollout(second.rollout_id, input=task)).input == task
    found = [first, *await store.dequeue_many_rollouts(limit=2)]
    found += [await store.start_rollout(task), await store.start_attempt(first.rollout_id)]
    found += await store.query_rollouts()
    found += (await store.search_rollouts(same_input_as=first.rollout_id)).items
    found += await store.cancel_rollouts([first.rollout_id])
    found += (await store.finished_rollouts()).items
    found += await store.wait_for_rollouts(rollout_ids=[first.rollout_id], timeout=0)
    assert len(found) == 14
    assert all(each.input == task for each in found)


@pytest.mark.parametrize(
    ("task", "path", "way_out"),
    [
        ({"a": {1, 2}}, "task['a']", "asdict"),
        ((1, {2}), "task[1]", "asdict"),
        ({"q": Question("why")}, "task['q']", "asdict"),
        ([0, {"x": float("nan")}], "task[1]['x']", "float"),
        ({"a": {1: "one"}}, "the key 1 of task['a']", "str keys"),
        ({"f": len}, "task['f']", "builtin_function"),
        ({"a": [b"bytes"]}, "task['a'][0]", "bytes"),
        ({"a": [Pair(1, 2)]}, "task['a'][0]", "_asdict"),
        (Model(when=datetime.date(2024, 1, 2)), "task", "model_dump"),
        ({"m": (Model(when=datetime.date(2024, 1, 2)),)}, "task['m'][0]", "Model.model_validate"),
        ({"r": RolloutConfig()}, "task['r']", "to_builtins"),
        ({"at": datetime.datetime(2024, 1, 2, tzinfo=ZoneInfo("Europe/Paris"))}, "task['at']", "astimezone"),
        ({"x": np.float32(0.5)}, "task['x']", "tolist"),
    ],
    ids=repr,
)
async def test_a_task_that_json_does_not_keep_is_refused_by_its_path(json_store, task, path, way_out):
    calls = [
        lambda: json_store.enqueue_rollout(task),
        lambda: json_store.enqueue_many_rollouts([EnqueueRolloutRequest("good"), EnqueueRolloutRequest(task)]),
        lambda: json_store.start_rollout(task),
    ]
    for call in calls:
        with pytest.raises(TaskError) as caught:
            await call()
        assert str(caught.value).startswith(f"{path} ")
        assert way_out in str(caught.value)
    assert (await json_store.query_rollouts()).total == 0


async def test_a_changed_task_must_survive_json_too(json_store):
    rollout = await json_store.enqueue_rollout("task")
    with raises(TaskError, "task['q']"):
        await json_store.update_rollout(rollout.rollout_id, input={"q": Question("why")})
    assert await json_store.get_rollout_by_id(rollout.rollout_id) == rollout


async def test_notes_must_survive_json_too(json_store):
    with raises(TaskError, "metadata['at']"):
        await json_store.enqueue_rollout("task", metadata={"at": datetime.date(2024, 1, 2)})
    assert (await json_store.query_rollouts()).total == 0


async def test_a_store_of_this_process_takes_any_object_as_task(object_store):
    task = {"question": Question("why"), "call": len, 1: (2, 3)}
    rollout = await object_store.enqueue_rollout(task)
    claimed = await object_store.dequeue_rollout()
    assert claimed.input is task
    assert rollout.input is task


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.enqueue_rollout("task", mode="training"),
        lambda store: store.start_rollout("task", mode="training"),
        lambda store: store.enqueue_rollout("task", rollout_id=""),
        lambda store: store.enqueue_rollout("task", rollout_id="a/b"),
        lambda store: store.enqueue_rollout("task", rollout_id=7),
        lambda store: store.enqueue_rollout("task", metadata=["k"]),
        lambda store: store.enqueue_rollout("task", config={"max_attempts": 0}),
        lambda store: store.dequeue_many_rollouts(limit=0),
        lambda store: store.dequeue_many_rollouts(limit=-1),
        lambda store: store.dequeue_rollout(wait_seconds=-1),
        lambda store: store.query_rollouts(sort_by="colour"),
        lambda store: store.query_rollouts(sort_by="rollout_id; drop table rollouts"),
        lambda store: store.query_rollouts(sort_order="up"),
        lambda store: store.query_rollouts(filter_logic="xor"),
        lambda store: store.query_rollouts(status_in=["done"]),
        lambda store: store.query_rollouts(mode="training"),
        lambda store: store.query_rollouts(limit=-2),
        lambda store: store.query_rollouts(offset=-1),
        lambda store: store.query_resources(sort_by="colour"),
        lambda store: store.query_workers(sort_by="colour"),
        lambda store: store.query_workers(status_in=["asleep"]),
        lambda store: store.update_worker(""),
        lambda store: store.finished_rollouts(after=-1),
        lambda store: store.finished_rollouts(limit=0),
        lambda store: store.prune(older_than=-1),
        lambda store: store.wait_for_rollouts(rollout_ids=[], timeout=-1),
    ],
    ids=range(26),
)
async def test_a_value_that_is_not_allowed_is_refused(store, call):
    await store.enqueue_rollout("kept")
    with pytest.raises(ValueError):
        await call(store)
    assert (await store.query_rollouts()).total == 1
    assert len(await drain(store)) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda store, claimed: store.update_rollout(claimed.rollout_id, status="done"),
        lambda store, claimed: store.update_rollout(claimed.rollout_id, mode="training"),
        lambda store, claimed: store.update_rollout(claimed.rollout_id, metadata=["k"]),
        lambda store, claimed: store.update_attempt(claimed.rollout_id, "latest", status="cancelled"),
        lambda store, claimed: store.update_attempt(claimed.rollout_id, "latest", status="queuing"),
        lambda store, claimed: store.query_attempts(claimed.rollout_id, sort_by="colour"),
        lambda store, claimed: store.query_spans(claimed.rollout_id, sort_by="colour"),
        lambda store, claimed: store.query_spans(claimed.rollout_id, filter_logic="xor"),
        lambda store, claimed: store.query_spans(claimed.rollout_id, limit=-2),
    ],
    ids=range(9),
)
async def test_a_value_that_is_not_allowed_changes_nothing(store, call):
    claimed = await run_new(store)
    before = await store.get_rollout_by_id(claimed.rollout_id)
    with pytest.raises(ValueError):
        await call(store, claimed)
    assert await store.get_rollout_by_id(claimed.rollout_id) == before


async def test_a_refusal_names_the_value_and_what_is_allowed(store):
    with raises(InvalidInputError, "start_tim", "start_time"):
        await store.query_rollouts(sort_by="start_tim")


@pytest.mark.parametrize("text", ["ünïcode", "a'b\"c", "ro-😀", "a.b:c@d", "x" * 200, "%s"[1:]], ids=repr)
async def test_any_printable_id_without_slashes_works_everywhere(store, text):
    config = RolloutConfig(unresponsive_seconds=100)
    await store.enqueue_rollout("task", rollout_id=text, config=config)
    claimed = await store.dequeue_rollout(worker_id=text, request_id=text)
    assert claimed.rollout_id == text
    assert (await store.get_rollout_by_id(text)).attempt.worker_id == text
    assert (await store.update_worker(text)).worker_id == text
    assert (await store.get_worker_by_id(text)).status == "busy"
    assert (await store.query_rollouts(rollout_id_contains=text)).total == 1
    assert await store.get_next_span_sequence_id(text, claimed.attempt.attempt_id) == 1
    await store.complete_attempt(text, claimed.attempt.attempt_id)
    assert [r.rollout_id for r in await store.wait_for_rollouts(rollout_ids=[text])] == [text]


async def test_what_a_caller_changes_afterwards_does_not_change_the_store(json_store):
    task, notes = {"a": [1]}, {"k": [1]}
    rollout = await json_store.enqueue_rollout(task, metadata=notes)
    task["a"].append(2)
    notes["k"].append(2)
    found = await json_store.get_rollout_by_id(rollout.rollout_id)
    assert (found.input, found.metadata) == ({"a": [1]}, {"k": [1]})


async def test_values_of_the_store_are_the_types_of_the_package(store):
    claimed = await claim_new(store)
    with pytest.raises(AttributeError):
        claimed.status = "succeeded"
    assert isinstance(claimed, msgspec.Struct)
