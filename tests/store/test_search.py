"""A search must give what a plain filter in Python gives, page by page, in every store."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sharpen.store import InMemoryLightningStore, LightningStore
from sharpen.types import ROLLOUT_MODES, EnqueueRolloutRequest, Rollout
from tests.store.internals import memory, search, sql_search

from .scenes import reward_span
from .worlds import Clock, Ground

ORDERS = ("newest", "oldest", "reward_high", "reward_low", "finished")
INPUTS = [None, 1, "Needle", 'say "hi"\n', {"q": "50%_off!"}, {"q": "50 off"}, ["é", "É"], "@" * 3]
LARGE = {"text": "x" * 70_000 + "needle", "n": 1}
GROUPS = [
    None,
    {},
    {"group": "a"},
    {"group": "b", "x": {"group": "a"}},
    {"group": 3},
    {"group": "a", "t": "y" * 70_000},
]


async def fill(store: LightningStore, clock: Clock) -> None:
    """Rollouts of every kind: their status, reward, worker, mode, group and input vary independently."""
    first = await store.add_resources({}, "rs-1")
    await store.update_resources(first.resources_id, {})
    await store.add_resources({}, "rs-2")
    for number in range(48):
        clock.advance(1)
        request = EnqueueRolloutRequest(
            LARGE if number % 16 == 3 else INPUTS[number % len(INPUTS)],
            mode=(None, *ROLLOUT_MODES)[number % 4],
            resources_id=(None, "rs-1")[number % 2],
            metadata=GROUPS[number * 7 % len(GROUPS)],
            rollout_id=f"Ro-{number:02d}",
        )
        await store.enqueue_many_rollouts([request])
    for number in range(40):
        claimed = await store.dequeue_rollout(worker_id=f"w-{number % 3}")
        assert claimed is not None
        ids = claimed.rollout_id, claimed.attempt.attempt_id
        if number % 5 == 1:
            await store.add_span(reward_span(claimed, number % 4 / 2))
        elif number % 5 != 2:
            status = "failed" if number % 5 == 3 else "succeeded"
            await store.complete_attempt(*ids, status=status, reward=(None, 1.0, 0.0, -2.5)[number % 4])
    await store.cancel_rollouts(["Ro-05", "Ro-45"])


def is_wanted(rollout: Rollout, worker_id: str | None, inputs: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """The words of the contract, in the plainest form."""

    def text_of(value: Any) -> str:
        return "" if value is None else msgspec.json.encode(value).decode()

    if "text" in wanted:
        needle = wanted["text"]
        places = (rollout.rollout_id, text_of(rollout.input), text_of(rollout.metadata))
        escaped = text_of(needle)[1:-1]
        if not any(each.encode().lower() in place.encode().lower() for each in (needle, escaped) for place in places):
            return False
    reward = rollout.reward
    tests = {
        "status_in": lambda value: rollout.status in value,
        "mode": lambda value: rollout.mode == value,
        "reward_min": lambda value: reward is not None and reward >= value,
        "reward_max": lambda value: reward is not None and reward <= value,
        "text": lambda value: True,
        "worker_id": lambda value: worker_id == value,
        "resources_id": lambda value: rollout.resources_id == value,
        "resources_version": lambda value: rollout.resources_version == value,
        "group": lambda value: (rollout.metadata or {}).get("group") == value,
        "same_input_as": lambda value: text_of(rollout.input) == text_of(inputs[value]),
        "started_after": lambda value: rollout.start_time >= value,
        "started_before": lambda value: rollout.start_time < value,
    }
    return all(tests[name](value) for name, value in wanted.items())


class Everything:
    """All rollouts of a store, read once."""

    def __init__(self, listed: list[Rollout], workers: list[str | None], finished: list[str]) -> None:
        self.listed, self.workers, self.finished = listed, workers, finished
        self.inputs = {rollout.rollout_id: rollout.input for rollout in listed}

    @classmethod
    async def of(cls, store: LightningStore) -> "Everything":
        listed = (await store.query_rollouts()).items
        attempts = [await store.get_latest_attempt(rollout.rollout_id) for rollout in listed]
        finished = [rollout.rollout_id for rollout in (await store.finished_rollouts()).items]
        return cls(listed, [attempt and attempt.worker_id for attempt in attempts], finished)


def expected(everything: Everything, order: str, wanted: dict[str, Any]) -> list[str]:
    """The ids that a filter over everything gives, sorted."""
    found = [
        rollout
        for rollout, worker_id in zip(everything.listed, everything.workers, strict=True)
        if is_wanted(rollout, worker_id, everything.inputs, wanted)
    ]
    if order == "oldest":
        return [rollout.rollout_id for rollout in found]
    newest = found[::-1]
    if order == "newest":
        return [rollout.rollout_id for rollout in newest]
    if order == "finished":
        done = [each for each in everything.finished[::-1] if each in {rollout.rollout_id for rollout in found}]
        return done + [rollout.rollout_id for rollout in newest if rollout.rollout_id not in done]
    has, rest = [r for r in found if r.reward is not None], [r for r in newest if r.reward is None]
    ranked = sorted(has, key=lambda rollout: rollout.reward)
    if order == "reward_high":
        ranked.reverse()
    return [rollout.rollout_id for rollout in [*ranked, *rest]]


async def follow(store: LightningStore, **wanted: Any) -> tuple[list[str], list[int | None]]:
    """The ids of all pages to the end, and the total that each page told."""
    totals, ids, cursor = [], [], None
    while True:
        page = await store.search_rollouts(cursor=cursor, **wanted)
        totals.append(page.total)
        ids += [rollout.rollout_id for rollout in page.items]
        assert len(page.items) <= wanted.get("limit", 50)
        assert len(totals) < 500
        if page.next_cursor is None:
            assert page.is_complete
            return ids, totals
        cursor = page.next_cursor


TIMES = [1_700_000_000.0 + seconds for seconds in (1, 7, 20, 48)]
REWARDS = [0.0, -3.0, -2.5, 0.3, 0.5, 1.0]
TEXTS = ["needle", "NEEDLE", '"hi"', "hi\n", "50%", "_off!", "off", "é", "É", "ro-1", "group", '"q":', "@", "", "yy"]
# Some values of each condition; the first fits several rollouts.
VALUES: dict[str, list[Any]] = {
    "status_in": [["succeeded", "queuing"], ["failed"], ["running", "cancelled"], ["requeuing"], []],
    "mode": list(ROLLOUT_MODES),
    "reward_min": REWARDS,
    "reward_max": REWARDS,
    "text": TEXTS,
    "worker_id": ["w-0", "w-1", "nobody"],
    "resources_id": ["rs-1", "rs-2", "rs-3"],
    "resources_version": [2, 1, 7],
    "group": ["a", "b", "3", "@", ""],
    "same_input_as": ["Ro-00", "Ro-03", "Ro-04", "Ro-08"],
    "started_after": TIMES,
    "started_before": TIMES[::-1],
}


@st.composite
def filters(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(list(VALUES)), unique=True, max_size=3))
    return {name: draw(st.sampled_from(VALUES[name])) for name in names}


async def filled(make: Callable[..., LightningStore]) -> LightningStore:
    clock = Clock()
    store = make(clock=clock)
    await fill(store, clock)
    return store


def bound(patch: pytest.MonkeyPatch, place: str, *, few: int, effort: float) -> None:
    """Small bounds in every module that has them, so that few rollouts are many."""
    modules = [memory, search, sql_search]
    if place == "redis":
        modules.append(import_module("sharpen.store.redis.tables"))
    bounds = {"FEW": few, "FEW_BY_NUMBER": few, "FIRST_SIZE": 3, "SEARCH_SECONDS": effort, "COUNT_SECONDS": effort}
    for module in modules:
        for name in bounds.keys() & vars(module).keys():
            patch.setattr(module, name, bounds[name])
    patch.setattr(search, "LOOK_AT_CLOCK", 1)


@contextmanager
def compared(
    ground: Ground, place: str, *, few: int, effort: float
) -> Iterator[Callable[[str, int, dict[str, Any]], None]]:
    """A check that stores agree with the plain filter, followed page by page to the end."""
    makers = [InMemoryLightningStore, ground.database("sqlite").open]
    if place != "local":
        makers = [ground.database(place).open]
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        stores = [runner.run(filled(make)) for make in makers]
        worlds = [(store, runner.run(Everything.of(store))) for store in stores]
        bound(patch, place, few=few, effort=effort)

        def check(order: str, limit: int, wanted: dict[str, Any]) -> None:
            for store, everything in worlds:
                right = expected(everything, order, wanted)
                ids, totals = runner.run(follow(store, order=order, limit=limit, **wanted))
                assert ids == right
                assert set(totals) <= {None, len(right)}
                assert effort == 0 or totals[0] == len(right)

        yield check
        for store in stores:
            runner.run(store.close())


def hunt(ground: Ground, place: str, examples: int, *, few: int, effort: float) -> None:
    """Random questions."""
    with compared(ground, place, few=few, effort=effort) as check:

        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(filters(), st.sampled_from(ORDERS), st.integers(1, 20))
        def agree(wanted: dict[str, Any], order: str, limit: int) -> None:
            check(order, limit, wanted)

        agree()


in_every_place = pytest.mark.parametrize(
    "place", ["local", *(pytest.param(each, marks=pytest.mark.servers) for each in ("postgres", "redis"))]
)


@in_every_place
@pytest.mark.parametrize("few", [0, 10_000])
def test_every_condition_gives_what_a_plain_filter_gives_in_every_order(ground, place, few):
    with compared(ground, place, few=few, effort=60.0) as check:
        for order in ORDERS:
            check(order, 4, {})
            for name, values in VALUES.items():
                check(order, 4, {name: values[0]})


@in_every_place
def test_conditions_together_give_what_a_plain_filter_gives(ground, place):
    hunt(ground, place, 40, few=5, effort=60.0)


@in_every_place
def test_a_search_whose_effort_is_used_up_at_once_still_reaches_the_end(ground, place):
    hunt(ground, place, 10, few=2, effort=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("effort", [0.0, 60.0])
@pytest.mark.parametrize("few", [0, 3, 10_000])
def test_searches_give_what_plain_filters_give(ground, few, effort):
    hunt(ground, "local", 250, few=few, effort=effort)
