"""Blocks: who holds them, and which prefixes they keep."""

import random

from tests.llm.internals import ROOT, BlockPool


def fill(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Blocks that hold these tokens, all known."""
    known, prefixes = pool.find(tokens, limit=len(tokens) // pool.block_size)
    for block in known:
        pool.hold(block)
    blocks, parent = list(known), prefixes[-1] if prefixes else ROOT
    for number in range(len(known), len(tokens) // pool.block_size):
        blocks.append(pool.allocate())
        parent = pool.register(blocks[-1], parent, tokens, number)
    return blocks


def test_a_released_prefix_is_found_again() -> None:
    pool = BlockPool(8, 2)
    blocks = fill(pool, [1, 2, 3, 4])
    pool.release(blocks)
    assert pool.num_held == 0
    assert pool.find([1, 2, 3, 4, 5, 6], limit=3)[0] == blocks
    assert pool.find([1, 2, 3, 5], limit=2)[0] == blocks[:1]
    assert pool.find([1, 2, 3, 4], limit=1)[0] == blocks[:1]


def test_equal_tokens_after_another_beginning_are_another_prefix() -> None:
    pool = BlockPool(8, 2)
    fill(pool, [1, 2, 3, 4])
    assert pool.find([9, 9, 3, 4], limit=2)[0] == []
    assert pool.find([3, 4], limit=1)[0] == []


def test_the_least_recently_used_block_is_given_up_and_ends_go_before_beginnings() -> None:
    pool = BlockPool(4, 2)
    pool.release(fill(pool, [1, 2, 3, 4]))
    pool.release(fill(pool, [5, 6, 7, 8]))
    for block in fill(pool, [1, 2]):  # used again: the other text is the older one now
        pool.release([block])
    for _ in range(2):
        pool.allocate()
    assert len(pool.find([1, 2, 3, 4], limit=2)[0]) == 1
    assert len(pool.find([5, 6, 7, 8], limit=2)[0]) == 1
    pool.allocate()
    assert len(pool.find([5, 6, 7, 8], limit=2)[0]) == 0
    assert len(pool.find([1, 2, 3, 4], limit=2)[0]) == 1


def test_forgetting_keeps_what_is_held_and_frees_the_rest() -> None:
    pool = BlockPool(4, 2)
    held = fill(pool, [1, 2])
    pool.release(fill(pool, [5, 6, 7, 8]))
    pool.forget_all()
    assert pool.find([1, 2], limit=1) == ([], [])
    assert (pool.num_held, pool.num_available, pool.num_idle) == (1, 3, 0)
    pool.release(held)
    assert (pool.num_held, pool.num_idle) == (0, 0)


def test_random_use_leaks_nothing_and_never_hands_out_a_held_block() -> None:
    chance = random.Random(0)
    pool = BlockPool(12, 2)
    held: list[list[int]] = []
    for _ in range(2_000):
        tokens = [chance.randrange(2) for _ in range(2 * chance.randrange(1, 5))]
        if pool.num_available >= len(tokens) // 2:
            held.append(fill(pool, tokens))
            for other in held[:-1]:
                assert not set(other) & set(held[-1]) or other[0] == held[-1][0]
        if held and (chance.random() < 0.6 or pool.num_available < 4):
            pool.release(held.pop(chance.randrange(len(held))))
        assert pool.num_held == len({block for blocks in held for block in blocks})
    for blocks in held:
        pool.release(blocks)
    assert pool.num_available == 12
