"""Trees of tokens: every sequence is found again, and what is shared stands once."""

import pytest
from hypothesis import given, settings, strategies as st

from sharpen.errors import InvalidInputError
from tests.errors import raises
from tests.llm.internals import token_tree, tree_batches

# Few tokens and long common beginnings, so that much is shared.
SEQUENCES = st.lists(
    st.builds(lambda start, end: [1] * start + end, st.integers(0, 40), st.lists(st.integers(0, 2), min_size=1)),
    min_size=1,
    max_size=6,
)


@given(SEQUENCES, st.booleans())
@settings(deadline=None, max_examples=60)
def test_each_sequence_is_a_path_through_the_tree(sequences: list[list[int]], shares: bool) -> None:
    tree = token_tree(sequences, shares=shares)
    for ids, path in zip(sequences, tree.paths, strict=True):
        assert tree.input_ids_R[path].tolist() == ids
        assert tree.position_ids_R[path].tolist() == list(range(len(ids)))
    assert [branch.first for branch in tree.branches] == [0, *(branch.last for branch in tree.branches)][:-1]
    assert tree.branches[-1].last == len(tree)
    for branch in tree.branches:
        assert branch.path_T[branch.start : branch.length].tolist() == list(range(branch.first, branch.last))
    if not shares:
        assert len(tree) == sum(map(len, sequences))


def test_a_prompt_stands_once() -> None:
    prompt = list(range(100, 140))
    tree = token_tree([[*prompt, 1, 2], [*prompt, 1, 3], [*prompt, 4]])
    assert len(tree) == 40 + 2 + 1 + 1
    assert tree.is_shared


def test_short_common_beginnings_and_rows_of_their_own_are_not_shared() -> None:
    assert not token_tree([[1, 2, 3, 4], [1, 2, 3, 5]]).is_shared
    same = list(range(30))
    assert len(token_tree([same, same], shares=False)) == 60
    assert len(token_tree([same, same])) == 30


@given(SEQUENCES, st.integers(1, 90))
@settings(deadline=None, max_examples=60)
def test_micro_batches_hold_each_sequence_once_within_the_budget(sequences: list[list[int]], budget: int) -> None:
    batches = tree_batches(sequences, token_budget=budget)
    assert sorted(number for batch in batches for number in batch) == list(range(len(sequences)))
    for batch in batches:
        rows = len(token_tree([sequences[number] for number in batch]))
        assert rows <= budget or len(batch) == 1


def test_samples_of_a_prompt_stay_together() -> None:
    groups = [[number * 50 + place for place in range(40)] for number in range(3)]
    sequences = [[*groups[number % 3], number] for number in range(12)]
    batches = tree_batches(sequences, token_budget=50)
    assert sorted(map(tuple, batches)) == [(0, 3, 6, 9), (1, 4, 7, 10), (2, 5, 8, 11)]


def test_nothing_and_empty_sequences_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        token_tree([])
    with raises(InvalidInputError, 1):
        token_tree([[1], []])
