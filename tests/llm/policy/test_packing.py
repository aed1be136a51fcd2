"""Which sequences are computed together, and padded rows."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from sharpen.errors import ConfigError, InvalidInputError
from tests.errors import raises
from tests.llm.internals import micro_batches, pack, padded

# -- packs -------------------------------------------------------------------------------------------


def test_packs_by_hand() -> None:
    # By length: 7 (1), 5 (3), 4 (0), 3 (4), 2 (2). 7 + 3 and 5 + 4 fit into 10; then 2 fits into neither.
    assert pack([4, 7, 2, 5, 3], 10) == [[1, 4], [0, 3], [2]]


def test_equal_lengths_are_packed_in_order() -> None:
    assert pack([2, 2, 2, 2, 2], 4) == [[0, 1], [2, 3], [4]]


def test_a_sequence_above_the_budget_goes_alone() -> None:
    assert pack([3, 50, 3], 10) == [[1], [0, 2]]


def test_nothing_is_packed_into_nothing() -> None:
    assert pack([], 10) == []
    assert micro_batches([], size=3) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=25), st.integers(1, 40))
def test_every_sequence_is_in_one_pack_within_the_budget_and_few_packs_are_half_empty(
    lengths: list[int], budget: int
) -> None:
    packs = pack(lengths, budget)

    assert sorted(number for each in packs for number in each) == list(range(len(lengths)))
    totals = [sum(lengths[number] for number in each) for each in packs]
    for each, total in zip(packs, totals, strict=True):
        assert total <= budget or len(each) == 1
    assert sum(total * 2 <= budget for total in totals) <= 1
    assert packs == pack(list(lengths), budget)


def first_fit_loop(lengths: list[int], budget: int) -> list[set[int]]:
    packs: list[set[int]] = []
    for _, number in sorted((-length, number) for number, length in enumerate(lengths)):
        for each in packs:
            if sum(lengths[k] for k in each) + lengths[number] <= budget:
                each.add(number)
                break
        else:
            packs.append({number})
    return packs


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=25), st.integers(1, 40))
def test_packs_agree_with_a_loop(lengths: list[int], budget: int) -> None:
    assert [set(each) for each in pack(lengths, budget)] == first_fit_loop(lengths, budget)


def test_micro_batches_by_budget_or_by_number() -> None:
    lengths = [4, 7, 2, 5, 3]

    assert micro_batches(lengths, token_budget=10) == pack(lengths, 10)
    assert micro_batches(lengths, size=2) == [[0, 1], [2, 3], [4]]


def test_lists_are_padded_at_the_end() -> None:
    assert padded([[1, 2], [3]], fill=-1).tolist() == [[1, 2], [3, -1]]
    assert padded([[True], [False, True]], dtype=torch.bool).tolist() == [[True, False], [False, True]]
    assert padded([]).shape == (0, 0)
    assert padded([[], []]).shape == (2, 0)


# -- bad input ---------------------------------------------------------------------------------------


def test_an_empty_sequence_is_refused() -> None:
    for refused in (lambda: pack([1, 0], 5), lambda: micro_batches([1, 0], size=1)):
        with raises(InvalidInputError, 1, 0):
            refused()


def test_sizes_below_one_and_two_sizes_are_refused() -> None:
    with raises(ConfigError, "token_budget", 0):
        pack([1], 0)
    with raises(ConfigError, "size", 0):
        micro_batches([1], size=0)
    with raises(ConfigError, "token_budget", 8, "size", 2):
        micro_batches([1], token_budget=8, size=2)
    with pytest.raises(ConfigError):
        micro_batches([1])
