"""The candidates of a search: their scores and costs, and the book that keeps them."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from sharpen.errors import ConfigError, InvalidInputError, UnknownIdError
from sharpen.stats import mean_interval, wilson_interval
from sharpen.types import PromptTemplate
from tests.algorithm.internals import Candidate, CandidateBook, Cost, Score, short_number
from tests.errors import raises

from .books import SEED, chain, prompts, small_book

# -- costs -------------------------------------------------------------------------------------------


def test_costs_add_up() -> None:
    assert Cost(1, 2, 3, 4, 0.5) + Cost(10, 20, 30, 40, 0.25) == Cost(11, 22, 33, 44, 0.75)


def test_a_price_that_is_known_in_part_is_kept_and_none_stays_none() -> None:
    assert (Cost(dollars=0.5) + Cost(1)).dollars == 0.5
    assert (Cost(1) + Cost(2)).dollars is None
    assert sum([Cost(1), Cost(2)], Cost()) == Cost(3)


def test_a_cost_in_words_leaves_out_what_was_not_used() -> None:
    assert Cost(16, 1, 1204, 310, 0.0042).text() == "16 rollouts, 1 call, 1,204 + 310 tokens, $0.0042"
    assert Cost(1).text() == "1 rollout"
    assert Cost().text() == "nothing"


# -- scores ------------------------------------------------------------------------------------------


def test_rewards_of_0_and_1_have_the_interval_of_wilson() -> None:
    score = Score.of([1, 0, True, 1.0])
    assert score == Score(0.75, *wilson_interval(3, 4), 4)


def test_other_rewards_have_the_t_interval() -> None:
    score = Score.of([0.5, 2.0, -1.0])
    assert (score.low, score.high) == mean_interval([0.5, 2.0, -1.0])
    assert score.mean == pytest.approx(0.5)


@pytest.mark.parametrize("reward", [1.0, 0.3])
def test_one_reward_has_no_interval(reward: float) -> None:
    assert Score.of([reward]) == Score(reward, None, None, 1)


def test_a_score_in_words() -> None:
    assert Score(0.62, 0.41, 0.79, 16).text() == "0.62 (0.41 to 0.79, n=16)"
    assert Score(0.3, None, None, 1).text() == "0.30 (n=1)"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (1.0, "1.00"), (0.0112, "0.011"), (-12.5, "-12.50"), (1234567.0, "1.235e+06")]
)
def test_numbers_of_any_scale_are_short(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.parametrize("rewards", [[], [math.nan], [1.0, math.inf]])
def test_a_score_needs_finite_rewards(rewards: list[float]) -> None:
    with raises(InvalidInputError, "rewards"):
        Score.of(rewards)


def test_huge_rewards_have_a_mean_but_no_interval() -> None:
    score = Score.of([1.7e308, 1.7e308, -1.7e308])
    assert score.mean == pytest.approx(1.7e308 / 3)
    assert (score.low, score.high) == (None, None)


# -- candidates --------------------------------------------------------------------------------------


def test_the_template_is_the_only_prompt() -> None:
    assert Candidate("v0", prompts(SEED)).template.template == SEED
    with raises(ConfigError, "v0", "a", "b"):
        _ = Candidate("v0", {"a": PromptTemplate("1"), "b": PromptTemplate("2")}).template


def test_the_parent_is_the_first_of_the_parents() -> None:
    assert Candidate("v2", prompts(SEED), ["v1", "v0"]).parent == "v1"
    assert Candidate("v0", prompts(SEED)).parent is None


def test_a_candidate_needs_a_version_and_a_prompt() -> None:
    with pytest.raises(InvalidInputError):
        Candidate("", prompts(SEED))
    with raises(InvalidInputError, "v0"):
        Candidate("v0", {})


def test_a_candidate_does_not_change_with_the_dict_it_was_made_from() -> None:
    given_prompts = prompts(SEED)
    candidate = Candidate("v0", given_prompts)
    given_prompts.clear()
    assert candidate.template.template == SEED


def test_half_characters_do_not_end_a_run_that_records_them() -> None:
    book = CandidateBook()
    book.add(Candidate("v0", prompts("a\ud800b"), critique="\udfff", reason="\ud800", status="rejected"))
    assert CandidateBook.of(msgspec.json.decode(msgspec.json.encode(book.as_json()))).seed.template.template == "a?b"


# -- the book ----------------------------------------------------------------------------------------


def test_a_book_keeps_the_order_of_making() -> None:
    book = small_book()
    assert [each.version for each in book] == ["v0", "v1", "v2", "v3", "v4"]
    assert (len(book), book.seed.version, "v3" in book, "v9" in book) == (5, "v0", True, False)


def test_a_version_twice_is_an_error_and_changes_nothing() -> None:
    book = small_book()
    with raises(InvalidInputError, "v1"):
        book.add(Candidate("v1", prompts("other")))
    assert book.as_json() == small_book().as_json()


def test_a_parent_must_be_in_the_book() -> None:
    with raises(InvalidInputError, "v9", "v5"):
        small_book().add(Candidate("v5", prompts("x"), ["v0", "v9"]))
    with raises(InvalidInputError, "v5"):
        small_book().add(Candidate("v5", prompts("x"), ["v5"]))


def test_an_update_changes_the_named_fields_only() -> None:
    book = small_book()
    before = book.get("v1")
    after = book.update("v1", status="dropped", score=Score.of([1.0]))
    assert book.get("v1") is after
    assert after == msgspec.structs.replace(before, status="dropped", score=Score.of([1.0]))


@pytest.mark.parametrize("changes", [{"parents": ["v4"]}, {"colour": "red"}])
def test_descent_and_unknown_fields_cannot_be_updated(changes: dict[str, Any]) -> None:
    with raises(InvalidInputError, next(iter(changes))):
        small_book().update("v1", **changes)


def test_an_unknown_version_is_named_with_what_there_is() -> None:
    with raises(UnknownIdError, "v9", 5, "v0", "v4"):
        small_book().get("v9")
    with pytest.raises(UnknownIdError):
        CandidateBook().get("v0")


def test_a_candidate_is_found_by_its_texts_and_engines() -> None:
    book = small_book()
    found = book.find(prompts("Answer."))
    assert found is not None
    assert found.version == "v2"
    assert book.find(prompts("Answer")) is None
    assert book.find({"prompt_template": PromptTemplate("Answer.", "jinja")}) is None
    assert book.find({"other": PromptTemplate("Answer.")}) is None


def test_the_best_is_the_seed_until_one_is_named() -> None:
    book = chain(2)
    book.best_version = None
    assert book.best is book.seed
    with pytest.raises(ConfigError):
        _ = CandidateBook().best


def test_naming_the_best_marks_it_and_keeps_the_one_before() -> None:
    book = small_book()
    book.best_version = "v1"
    assert [(each.version, each.status) for each in book if each.version in ("v1", "v4")] == [
        ("v1", "best"),
        ("v4", "kept"),
    ]
    book.best_version = "v1"
    assert book.best.status == "best"
    with pytest.raises(UnknownIdError):
        book.best_version = "v9"
    assert book.best_version == "v1"


# -- JSON --------------------------------------------------------------------------------------------


def test_a_book_survives_json() -> None:
    book = small_book()
    again = CandidateBook.of(json.loads(json.dumps(book.as_json())))
    assert list(again) == list(book)
    assert (again.best_version, again.as_json()) == ("v4", book.as_json())


def test_what_was_paid_for_no_candidate_survives_json_and_older_books_have_none() -> None:
    book = small_book()
    book.other_cost = Cost(rollouts=10)
    written = json.loads(json.dumps(book.as_json()))
    assert CandidateBook.of(written).other_cost == Cost(rollouts=10)
    assert CandidateBook.of(written).cost == small_book().cost + Cost(rollouts=10)
    del written["other_cost"]
    assert CandidateBook.of(written).cost == small_book().cost


def test_a_book_as_json_is_made_of_plain_values() -> None:
    def kinds(value: Any) -> set[type]:
        inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
        return {type(value)}.union(*map(kinds, inner))

    assert kinds(small_book().as_json()) <= {dict, list, str, int, float, bool, type(None)}


texts = st.text(st.characters(exclude_categories=[])) | st.sampled_from(["{question}", "{{x}}", "\x1b[0m\x00", "{"])


@given(text=texts, critique=st.none() | texts, engine=st.sampled_from(["f-string", "jinja", "poml"]))
def test_every_text_survives_json(text: str, critique: str | None, engine: Any) -> None:
    book = CandidateBook()
    book.add(Candidate("v0", {"p": PromptTemplate(text, engine)}, critique=critique))
    again = CandidateBook.of(msgspec.json.decode(msgspec.json.encode(book.as_json())))
    assert list(again) == list(book)
    if text == text.encode("utf-8", "replace").decode():
        assert again.seed.prompts == {"p": PromptTemplate(text, engine)}


@settings(max_examples=30)
@given(rewards=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_score_survives_json(rewards: list[float]) -> None:
    score = Score.of(rewards)
    assert msgspec.json.decode(msgspec.json.encode(score), type=Score) == score


def damaged(**changes: Any) -> Any:
    value = small_book().as_json()
    value["candidates"][1] |= changes
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, ("object", "null")),
        ([], ("array",)),
        ({}, ("format",)),
        ({**small_book().as_json(), "format": 2}, (2, 1)),
        ({**small_book().as_json(), "best_version": "v9"}, ("v9",)),
        (damaged(version="v0"), ("v0",)),
        (damaged(parents=["v4"]), ("v4", "v1")),
        (damaged(status="good"), ("good",)),
        (damaged(prompts={}), ()),
        (damaged(prompts={"p": "text"}), ("object", "str")),
        (damaged(score={"mean": "high"}), ("float", "str")),
        (damaged(score={"mean": math.nan, "low": None, "high": None, "count": 1}), ("mean", "nan")),
    ],
)
def test_a_damaged_book_is_a_clear_error(value: Any, named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        CandidateBook.of(value)
