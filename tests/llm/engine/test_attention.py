"""The layout of a decode step: every row once, shared blocks read once, and the same numbers as without sharing."""

import random
from typing import Any

import pytest

from sharpen.llm.engine import Engine, SamplingParams
from tests.llm.internals import DecodeSpan, Sequence, arrange_rows, engine_attention as attention

from .tiny import shared


def sequence_with(blocks: list[int]) -> Sequence:
    no_request: Any = None
    return Sequence(no_request, 0, SamplingParams(), 0, [1], 1, (0, 0), 1, frozenset(), blocks=blocks)


def test_rows_with_one_beginning_stand_together_and_the_rest_by_length() -> None:
    group = [sequence_with([1, 2, 3, own]) for own in (10, 11, 12)]
    other = [sequence_with([4, 5, 6, own, own + 10]) for own in (20, 21, 22)]
    long, short = sequence_with(list(range(50, 90))), sequence_with([40])
    rows, laid = arrange_rows([long, group[0], other[0], short, group[1], other[1], group[2], other[2]], 64)
    assert rows == [*group, *other, short, long]
    assert laid == (DecodeSpan(0, 6, 5, 3, 3), DecodeSpan(6, 7, 1), DecodeSpan(7, 8, 40))


def test_little_that_is_shared_is_not_read_apart() -> None:
    rows, laid = arrange_rows([sequence_with([1, 2]), sequence_with([1, 3])], 16)
    assert len(rows) == 2
    assert laid == (DecodeSpan(0, 2, 2),)


def test_any_layout_covers_every_row_once_and_names_only_blocks_that_are_shared() -> None:
    chance = random.Random(0)
    for _ in range(300):
        sequences = []
        for own in range(chance.randrange(1, 12)):
            beginning = list(range(1, chance.choice([1, 1, 5, 9, 20])))
            sequences.append(
                sequence_with([*beginning, *range(100 * own + 100, 100 * own + chance.randrange(101, 130))])
            )
        rows, laid = arrange_rows(sequences, 16)
        assert sorted(map(id, rows)) == sorted(map(id, sequences))
        assert [span.first for span in laid] == [0, *(span.last for span in laid[:-1])]
        assert laid[-1].last == len(rows)
        for span in laid:
            assert (span.last - span.first) % span.group_size == 0
            for first in range(span.first, span.last, span.group_size):
                group = rows[first : first + span.group_size]
                assert len({tuple(each.blocks[: span.num_shared]) for each in group}) == 1
                assert all(span.num_shared < len(each.blocks) <= span.num_blocks for each in group)


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_reading_a_shared_beginning_once_changes_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[*range(3, 40), 5, 6], [*range(3, 40), 7, 8, 9, 10, 11], [4] * 33, [9, 8]]
    params = SamplingParams(max_new_tokens=12, n=3, seed=2, ignore_eos=True)
    results = {}
    for least in (0, 10**9):
        monkeypatch.setattr(attention, "MIN_SAVED_TOKENS", least)
        engine = Engine(shared(family), max_batch=12, max_tokens=1_024, block_size=4)
        results[least] = [sample for each in engine.sample(prompts, params) for sample in each.samples]
    for once, apart in zip(results[0], results[10**9], strict=True):
        assert once.token_ids == apart.token_ids
        assert once.model_logprobs == pytest.approx(apart.model_logprobs, abs=1e-5)
