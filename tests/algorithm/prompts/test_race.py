"""The race between candidates: hand-worked cases, properties, and how often the best one survives."""

import math
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings, strategies as st

from sharpen.errors import ConfigError, InvalidInputError
from tests.algorithm.internals import Pairs, Race, Slice, Usual
from tests.errors import raises

Rewards = Mapping[str, Sequence[float | None]]


def run(race: Race, rewards: Rewards, see: Callable[[Slice], None] | None = None) -> int:
    """To its end; gives how many rewards it asked for."""
    asked = 0
    while (cut := race.next_slice()) is not None:
        if see is not None:
            see(cut)
        for name in cut.names:
            for position in cut.items:
                race.add(name, position, rewards[name][position])
                asked += 1
    return asked


def race_of(rewards: Rewards, **options: float | None) -> Race:
    num_items = len(next(iter(rewards.values())))
    return Race(list(rewards), num_items=num_items, **options)  # type: ignore[arg-type]


# -- who leaves ------------------------------------------------------------------------------------------


def test_a_clearly_worse_one_leaves_after_the_first_slice_with_a_reason_in_words() -> None:
    rewards = {"good": [1.0] * 32, "bad": [0.0] * 32, "also good": [1.0] * 32}
    race = race_of(rewards)
    assert race.next_slice() == Slice(("good", "bad", "also good"), range(6))
    for name in rewards:
        for position in range(6):
            race.add(name, position, rewards[name][position])
    assert race.alive == ["good", "also good"]
    assert race.dropped.keys() == {"bad"}
    assert race.dropped["bad"].startswith("worse than good by 1 on the 6 items")
    following = race.next_slice()
    assert following == Slice(("good", "also good"), range(6, 9))


def test_equals_stay_to_the_end_in_the_order_they_came() -> None:
    rewards = {name: [0.0, 1.0] * 10 for name in ("c", "a", "b")}
    race = race_of(rewards)
    assert run(race, rewards) == 3 * 20
    assert race.alive == ["c", "a", "b"]
    assert race.ranking() == ["c", "a", "b"]


def test_the_same_rewards_on_other_items_are_a_tie_which_rounding_does_not_break() -> None:
    # Each has every reward from 0 to 0.6 three times, with means of items that are no round numbers.
    rewards = {f"v{n}": [0.1 * ((position + n) % 7) for position in range(21)] for n in (4, 2, 6, 0, 3)}
    race = race_of(rewards, first_slice=21)
    run(race, rewards)
    assert race.ranking() == list(rewards)


def test_what_is_hard_for_all_does_not_blur_a_difference() -> None:
    # The rewards swing by 100 from item to item, and one is always 5 ahead of the other.
    hard = [100.0 * (position % 2) for position in range(64)]
    rewards = {"behind": hard, "ahead": [reward + 5 for reward in hard]}
    race = race_of(rewards)
    assert run(race, rewards) < 2 * 64
    assert race.alive == ["ahead"]


def test_three_wins_among_few_items_are_not_enough_where_many_are_to_come() -> None:
    rewards = {"lucky": [1.0] * 3 + [0.0] * 253, "other": [0.0] * 256}
    race = race_of(rewards, first_slice=3)
    assert race.next_slice() == Slice(("lucky", "other"), range(3))
    for name in rewards:
        for position in range(3):
            race.add(name, position, rewards[name][position])
    assert race.alive == ["lucky", "other"]


def test_nobody_is_judged_before_six_items() -> None:
    for num_items in range(1, 40):
        cut = Race(["a", "b"], num_items=num_items).next_slice()
        assert cut is not None
        assert len(cut.items) >= min(6, num_items)


def test_the_comparison_is_with_the_last_place_that_is_kept() -> None:
    # Two places: `third` is far behind the first, but level with the second.
    rewards = {"first": [1.0] * 24, "second": [0.5] * 24, "third": [0.5] * 24, "fourth": [0.0] * 24}
    race = race_of(rewards, keep=2)
    run(race, rewards)
    assert race.alive == ["first", "second", "third"]
    assert "worse than second by 0.5" in race.dropped["fourth"]


def test_it_ends_when_only_those_are_left_who_are_kept() -> None:
    rewards = {"a": [1.0] * 64, "b": [0.9] * 64, "c": [0.0] * 64, "d": [0.1] * 64}
    race = race_of(rewards, keep=2)
    assert run(race, rewards) == 4 * 6
    assert race.ranking() == ["a", "b", "d", "c"]


def test_no_more_candidates_than_places_need_no_items() -> None:
    race = Race(["a", "b"], num_items=16, keep=2)
    assert race.next_slice() is None
    assert race.ranking() == ["a", "b"]


def test_a_tolerance_lets_near_equals_go_sooner() -> None:
    rng = random.Random(4)
    rewards = {name: [rng.gauss(level, 0.1) for _ in range(128)] for name, level in (("a", 0.5), ("b", 0.495))}
    careful, bold = race_of(rewards), race_of(rewards, tolerance=0.1)
    assert run(bold, rewards) < run(careful, rewards)


def test_huge_rewards_are_compared_like_any_others() -> None:
    rewards = {"good": [1e300] * 16, "bad": [-1e300] * 16}
    race = race_of(rewards)
    assert run(race, rewards) == 2 * 6
    assert race.alive == ["good"]


# -- slices ----------------------------------------------------------------------------------------------


def test_slices_grow_and_the_last_takes_up_what_is_hardly_worth_its_own() -> None:
    rewards = {"a": [0.5] * 64, "b": [0.5] * 64}
    cuts: list[range] = []
    run(race_of(rewards), rewards, see=lambda cut: cuts.append(cut.items))
    assert [cut.stop for cut in cuts] == [6, 9, 14, 21, 32, 64 - 16, 64]
    cuts.clear()
    run(race_of(rewards, first_slice=8, growth=2.0), rewards, see=lambda cut: cuts.append(cut.items))
    assert [cut.stop for cut in cuts] == [8, 16, 32, 64]


def test_a_slice_is_the_same_until_all_of_it_is_added() -> None:
    race = Race(["a", "b"], num_items=16)
    first = race.next_slice()
    assert first is not None
    race.add("a", 0, 1.0)
    assert race.next_slice() == first


def test_the_order_in_which_rewards_arrive_changes_nothing() -> None:
    rng = random.Random(1)
    rewards = {f"v{n}": [float(rng.random() < 0.3 + 0.05 * n) for _ in range(48)] for n in range(8)}
    told = []
    for seed in range(5):
        race = race_of(rewards)
        while (cut := race.next_slice()) is not None:
            cells = [(name, position) for name in cut.names for position in cut.items]
            random.Random(seed).shuffle(cells)
            for name, position in cells:
                race.add(name, position, rewards[name][position])
        told.append((race.ranking(), race.alive, race.dropped))
    assert all(each == told[0] for each in told)


# -- lost rewards ----------------------------------------------------------------------------------------


def test_lost_rewards_are_left_out_of_pairs() -> None:
    # Where `b` has no reward `a` shines, but nothing is known about `b` there.
    rewards: Rewards = {"a": [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "b": [None, None, None, *[0.5] * 5]}
    race = race_of(rewards, first_slice=4)
    run(race, rewards)
    assert race.ranking() == ["b", "a"]


def test_one_who_lost_every_reward_is_last_but_not_dropped() -> None:
    rewards: Rewards = {"none": [None] * 16, "a": [0.4, 0.6] * 8, "b": [0.6, 0.4] * 8}
    race = race_of(rewards)
    run(race, rewards)
    assert "none" in race.alive
    assert race.ranking()[-1] == "none"
    assert race.mean("none") is None
    assert race.mean("a") == pytest.approx(0.5)


def test_if_all_is_lost_nobody_is_dropped() -> None:
    rewards: Rewards = {"a": [None] * 12, "b": [None] * 12}
    race = race_of(rewards)
    run(race, rewards)
    assert race.alive == ["a", "b"]


# -- wrong use -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"names": []}, ("names",)),
        ({"names": ["a", "b", "a"]}, ("a",)),
        ({"num_items": 0}, ("num_items", 0)),
        ({"keep": 0}, ("keep", 0)),
        ({"first_slice": 0}, ("first_slice", 0)),
        ({"growth": 1.0}, ("growth", 1.0)),
        ({"growth": math.nan}, ("growth", "nan")),
        ({"confidence": 1.0}, ("confidence", 1.0)),
        ({"tolerance": -0.1}, ("tolerance", -0.1)),
    ],
)
def test_settings_that_make_no_sense_are_named(options: dict[str, object], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        Race(**{"names": ["a", "b"], "num_items": 8} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "position", "reward", "named"),
    [
        ("x", 0, 1.0, ("x",)),
        ("a", 6, 1.0, (6,)),
        ("a", -1, 1.0, (-1,)),
        ("a", 0, 1.0, (0,)),
        ("a", 1, math.nan, (1, "nan")),
        ("a", 1, math.inf, (1, "inf")),
    ],
)
def test_a_reward_that_cannot_be_is_an_error_that_changes_nothing(
    name: str, position: int, reward: float, named: tuple[object, ...]
) -> None:
    race = Race(["a", "b"], num_items=32)
    race.next_slice()
    race.add("a", 0, 0.5)
    with raises(InvalidInputError, *named):
        race.add(name, position, reward)
    assert race.mean("a") == 0.5
    assert race.alive == ["a", "b"]


def test_one_who_left_gets_no_more_rewards() -> None:
    rewards = {"good": [1.0] * 32, "also good": [1.0] * 32, "bad": [0.0] * 32}
    race = race_of(rewards)
    first = race.next_slice()
    assert first is not None
    for name in first.names:
        for position in first.items:
            race.add(name, position, rewards[name][position])
    with raises(InvalidInputError, "next_slice()"):
        race.add("bad", 6, 1.0)
    race.next_slice()
    with pytest.raises(InvalidInputError):
        race.add("bad", 6, 1.0)


# -- the bound -------------------------------------------------------------------------------------------


def test_the_bound_is_the_one_worked_by_hand() -> None:
    # 1, 1, 1, 1 and a quarter of a win for either side: middle 4 / 4.5 = 8/9, squares 4 * (1/9)^2 and a quarter of
    # (1/9)^2 + (17/9)^2, in all 306 / 324, over 3.5: variance 0.269841.
    pairs = Pairs([1.0] * 4)
    assert pairs.variance == pytest.approx(306 / 324 / 3.5)
    # Mixed as 3 and 8 with the usual 0.5: 0.437229; 12 of 16 items are to come; t of 95 % at 11 is 1.7959.
    bound = pairs.bound(16, 0.95, Usual(0.5, 8))
    assert bound == pytest.approx(8 / 9 - 1.7959 * math.sqrt(0.437229 * 0.75 / 4.5), abs=1e-4)


def test_the_bound_closes_when_no_item_is_left() -> None:
    assert Pairs([0.5] * 8).bound(8, 0.95, Usual(1.0, 8)) == pytest.approx(4 / 8.5)


def test_a_single_comparison_has_no_usual_variance_to_lean_on() -> None:
    few, more = Pairs([1.0, 0.0, 1.0]), Pairs([0.0, 1.0, -1.0, 1.0])
    assert Usual.of([few]) == Usual(few.variance, 0)
    assert Usual.of([few, more, Pairs([])]) == Usual((few.variance + more.variance) / 2, 2)
    assert Usual.of([few] * 9).freedom == 8


def test_without_pairs_nothing_is_known() -> None:
    pairs = Pairs([])
    assert pairs.mean == 0
    assert pairs.bound(16, 0.95, Usual(0.0, 0)) < -0.5


# -- properties ------------------------------------------------------------------------------------------

REWARD = st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(-5, 5, allow_nan=False))


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, list[float | None]], int]:
    count, num_items = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    column = st.lists(REWARD, min_size=num_items, max_size=num_items)
    return {f"v{n}": draw(column) for n in range(count)}, draw(st.integers(1, count))


@given(tables(), st.integers(1, 8), st.floats(1.1, 4), st.floats(0.05, 0.95), st.floats(0, 0.5))
@settings(max_examples=60, deadline=None)
def test_whatever_the_rewards_a_race_keeps_its_promises(
    made: tuple[dict[str, list[float | None]], int], first: int, growth: float, confidence: float, tolerance: float
) -> None:
    rewards, keep = made
    num_items = len(rewards["v0"])
    star: list[float | None] = [9.0] * num_items  # better than everybody on every item
    rewards = {**rewards, "star": star}
    race = Race(
        list(rewards),
        num_items=num_items,
        keep=keep,
        first_slice=first,
        growth=growth,
        confidence=confidence,
        tolerance=tolerance,
    )
    met: list[int] = []
    asked = run(race, rewards, see=lambda cut: met.extend(cut.items))
    assert met == list(range(len(met)))
    assert len(met) <= num_items
    assert asked <= len(rewards) * num_items
    assert len(race.alive) >= keep
    assert "star" in race.alive
    assert sorted(race.ranking()) == sorted(rewards)
    assert set(race.alive) | set(race.dropped) == set(rewards)
    assert not set(race.alive) & set(race.dropped)


@given(tables(), st.sampled_from([0.25, 4.0, 1024.0]), st.integers(-64, 64))
@settings(max_examples=40, deadline=None)
def test_a_race_has_the_same_course_on_any_scale(
    made: tuple[dict[str, list[float | None]], int], scale: float, shift: int
) -> None:
    # Steps of 1/8 survive scaling and shifting without rounding.
    rewards = {
        name: [None if reward is None else round(reward * 8) / 8 for reward in column]
        for name, column in made[0].items()
    }
    other: Rewards = {
        name: [None if reward is None else reward * scale + shift for reward in column]
        for name, column in rewards.items()
    }
    one, two = race_of(rewards, keep=made[1]), race_of(other, keep=made[1])
    assert run(one, rewards) == run(two, other)
    assert set(one.dropped) == set(two.dropped)


# -- how often it is right -------------------------------------------------------------------------------


def test_the_best_survives_in_nine_of_ten_tasks_for_half_of_the_rollouts() -> None:
    survived = asked = 0
    for seed in range(200):
        rng = random.Random(seed)
        levels = [rng.uniform(0.2, 0.7) for _ in range(12)]
        hard = [rng.random() for _ in range(64)]
        rewards = {f"v{n}": [float(rng.gauss(level, 0.1) > item) for item in hard] for n, level in enumerate(levels)}
        race = race_of(rewards, keep=2)
        asked += run(race, rewards)
        survived += f"v{levels.index(max(levels))}" in race.alive
    assert survived >= 180
    assert asked <= 0.5 * 200 * 12 * 64
