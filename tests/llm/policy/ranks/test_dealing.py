"""Ranks get about the same number of tokens, and what begins alike stays together."""

import random

import pytest
from hypothesis import given, strategies as st

from tests.llm.internals import deal

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), max_size=12)


@given(SEQUENCES, st.integers(1, 5), st.booleans())
def test_every_sequence_has_one_rank(sequences: list[list[int]], num_ranks: int, shares: bool) -> None:
    parts = deal(sequences, num_ranks, shares=shares)
    assert len(parts) == num_ranks
    assert sorted(number for part in parts for number in part) == list(range(len(sequences)))


@given(SEQUENCES, st.integers(1, 5))
def test_no_rank_has_much_more_than_its_share(sequences: list[list[int]], num_ranks: int) -> None:
    parts = deal(sequences, num_ranks, shares=False)
    tokens = [sum(len(sequences[number]) for number in part) for part in parts]
    longest = max(map(len, sequences), default=0)
    assert max(tokens) <= sum(tokens) / num_ranks + longest


def test_the_samples_of_a_prompt_stay_with_one_rank() -> None:
    rng = random.Random(0)
    prompts = [[rng.randrange(100) for _ in range(200)] for _ in range(4)]
    sequences = [[*prompt, *(rng.randrange(100) for _ in range(10))] for prompt in prompts * 4]
    rng.shuffle(sequences)
    parts = deal(sequences, 4)
    for part in parts:
        assert len(part) == 4
        assert len({tuple(sequences[number][:200]) for number in part}) == 1


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_one_long_prompt_of_all_samples_is_divided_as_well(num_ranks: int) -> None:
    rng = random.Random(1)
    prompt = [rng.randrange(100) for _ in range(400)]
    sequences = [[*prompt, *(rng.randrange(100) for _ in range(50))] for _ in range(8)]
    assert {len(part) for part in deal(sequences, num_ranks)} == {8 // num_ranks}
