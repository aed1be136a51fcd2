"""Packs, packed rows, the mask, and the way back."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn.functional import scaled_dot_product_attention

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.llm.policy.packing import PackedRow, block_causal_mask, micro_batches, pack, packed_row, padded, unpack

SEQUENCES = [[5, 6, 7], [8], [9, 10]]


def random_sequences(seed: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (4,), generator=random).tolist()
    return [torch.randint(0, 20, (length,), generator=random).tolist() for length in lengths]


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


# -- rows --------------------------------------------------------------------------------------------


def test_a_row_by_hand() -> None:
    row = packed_row(SEQUENCES)

    assert row.input_ids_T.tolist() == [5, 6, 7, 8, 9, 10]
    assert row.position_ids_T.tolist() == [0, 1, 2, 0, 0, 1]
    assert row.sequence_T.tolist() == [0, 0, 0, 1, 2, 2]
    assert row.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert row.cu_seqlens.dtype == torch.int32
    assert (row.max_length, row.num_sequences) == (3, 3)


def test_the_mask_by_hand() -> None:
    mask = packed_row([[1, 2, 3], [4], [5, 6]]).attention_mask()

    assert mask.shape == (1, 1, 6, 6)
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize("seed", range(4))
def test_rows_and_masks_agree_with_a_loop(seed: int) -> None:
    sequences = random_sequences(seed)
    row = packed_row(sequences)

    tokens = [(number, place, token) for number, each in enumerate(sequences) for place, token in enumerate(each)]
    columns = zip(row.sequence_T.tolist(), row.position_ids_T.tolist(), row.input_ids_T.tolist(), strict=True)
    assert list(columns) == tokens
    wanted = [[a == b and i >= j for b, j, _ in tokens] for a, i, _ in tokens]
    assert block_causal_mask(row.sequence_T)[0, 0].tolist() == wanted


@pytest.mark.parametrize("seed", range(4))
def test_packed_attention_is_that_of_each_sequence_alone_with_its_gradient(seed: int) -> None:
    row = packed_row(random_sequences(seed))
    length = len(row.input_ids_T)
    random = torch.Generator().manual_seed(seed)
    qkv = torch.randn(3, 1, 2, length, 4, generator=random, dtype=torch.float64, requires_grad=True)

    packed = scaled_dot_product_attention(*qkv, attn_mask=row.attention_mask())
    bounds = row.cu_seqlens.tolist()
    parts = [scaled_dot_product_attention(*qkv[..., start:end, :], is_causal=True) for start, end in pairwise(bounds)]
    alone = torch.cat(parts, dim=2)

    torch.testing.assert_close(packed, alone)
    weights = torch.randn(packed.shape, generator=random, dtype=torch.float64)
    gradients = [torch.autograd.grad((each * weights).sum(), qkv)[0] for each in (packed, alone)]
    torch.testing.assert_close(gradients[0], gradients[1])


# -- the way back ------------------------------------------------------------------------------------


def test_unpack_by_hand() -> None:
    row = packed_row(SEQUENCES)

    assert unpack(row.input_ids_T, row).tolist() == [[5, 6, 7], [8, 0, 0], [9, 10, 0]]


def test_unpack_takes_vectors_per_token() -> None:
    row = packed_row(SEQUENCES)
    values = torch.arange(12.0).view(6, 2)

    found = unpack(values, row)

    assert found.shape == (3, 3, 2)
    assert found[2].tolist() == [[8, 9], [10, 11], [0, 0]]


@pytest.mark.parametrize("seed", range(4))
def test_unpacked_rows_are_the_padded_sequences(seed: int) -> None:
    sequences = random_sequences(seed)
    row = packed_row(sequences)

    assert torch.equal(unpack(row.input_ids_T, row), padded(sequences))


def test_unpack_keeps_the_gradient() -> None:
    row = packed_row(SEQUENCES)
    values = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(lambda x: unpack(x, row), values)


def test_lists_are_padded_at_the_end() -> None:
    assert padded([[1, 2], [3]], fill=-1).tolist() == [[1, 2], [3, -1]]
    assert padded([[True], [False, True]], dtype=torch.bool).tolist() == [[True, False], [False, True]]
    assert padded([]).shape == (0, 0)
    assert padded([[], []]).shape == (2, 0)


# -- bad input ---------------------------------------------------------------------------------------


def test_an_empty_sequence_is_refused() -> None:
    for refused in (lambda: pack([1, 0], 5), lambda: micro_batches([1, 0], size=1), lambda: packed_row([[1], []])):
        with pytest.raises(InvalidInputError, match="sequence 1 has the length 0"):
            refused()


def test_a_row_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no sequence to pack"):
        packed_row([])


def test_sizes_below_one_and_two_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="token_budget is 0"):
        pack([1], 0)
    with pytest.raises(ConfigError, match="size is 0"):
        micro_batches([1], size=0)
    with pytest.raises(ConfigError, match="token_budget is 8 and size is 2: give one of them"):
        micro_batches([1], token_budget=8, size=2)
    with pytest.raises(ConfigError, match="give one of them"):
        micro_batches([1])


def test_values_of_another_row_are_refused() -> None:
    row: PackedRow = packed_row(SEQUENCES)
    with pytest.raises(InvalidInputError, match=r"shape \(5,\), but the row has 6 tokens"):
        unpack(torch.zeros(5), row)
