# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention of many new tokens a text: first all keys and values are stored, then each tile of queries reads them."""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

from .triton_decode import turned


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])  # lines of a table of any width
def turn_and_store(
    qkv, keys, values, cos, sin, tables, slots, positions,
    q_norm, k_norm, row_width, table_width, num_places, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    HEADS_PAD: tl.constexpr, KV_PAD: tl.constexpr, SIZE_PAD: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """One row: its queries are turned where they lie, its keys and values go to the cache."""
    row = tl.program_id(0).to(tl.int64)
    dtype = keys.dtype.element_ty
    position = tl.load(positions + row).to(tl.int32)
    d = tl.arange(0, SIZE_PAD)
    far = tl.where(d < SIZE // 2, d + SIZE // 2, d - SIZE // 2)
    in_size = d < SIZE
    turn = tl.load(cos + position * SIZE + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
    swap = tl.load(sin + position * SIZE + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
    qkv += row * row_width

    h = tl.arange(0, HEADS_PAD)
    q_mask = (h < HEADS)[:, None] & in_size[None, :]
    q = tl.load(qkv + h[:, None] * SIZE + d[None, :], mask=q_mask, other=0.0).to(tl.float32)
    q_far = tl.load(qkv + h[:, None] * SIZE + far[None, :], mask=q_mask, other=0.0).to(tl.float32)
    n = tl.arange(0, KV_PAD)
    k_mask = (n < KV_HEADS)[:, None] & in_size[None, :]
    k_place = qkv + (HEADS + n)[:, None] * SIZE
    k = tl.load(k_place + d[None, :], mask=k_mask, other=0.0).to(tl.float32)
    k_far = tl.load(k_place + far[None, :], mask=k_mask, other=0.0).to(tl.float32)
    v = tl.load(k_place + KV_HEADS * SIZE + d[None, :], mask=k_mask, other=0.0)
    if HAS_NORM:
        wq = tl.load(q_norm + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
        wq_far = tl.load(q_norm + far, mask=in_size, other=0.0).to(tl.float32)[None, :]
        wk = tl.load(k_norm + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
        wk_far = tl.load(k_norm + far, mask=in_size, other=0.0).to(tl.float32)[None, :]
        q = turned(q, q_far, wq, wq_far, turn, swap, SIZE, eps, True)
        k = turned(k, k_far, wk, wk_far, turn, swap, SIZE, eps, True)
    else:
        q = turned(q, q_far, q, q_far, turn, swap, SIZE, eps, False)
        k = turned(k, k_far, k, k_far, turn, swap, SIZE, eps, False)
    # All threads have read before one writes: the two halves of a head are each other's partners.
    tl.debug_barrier()
    tl.store(qkv + h[:, None] * SIZE + d[None, :], q.to(dtype), mask=q_mask)
    table = tables + tl.load(slots + row).to(tl.int64) * table_width
    place = tl.load(table + position // BLOCK).to(tl.int64) * BLOCK + position % BLOCK
    target = (n.to(tl.int64)[:, None] * num_places + place) * SIZE + d[None, :]
    tl.store(keys + target, k.to(dtype), mask=k_mask)
    tl.store(values + target, v, mask=k_mask)


@triton.jit
def prefill(
    qkv, keys, values, tables, tiles, out,
    row_width, table_width, num_places, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    GROUP_PAD: tl.constexpr, SIZE_PAD: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of neighbouring queries of one text, with all heads that share one head of keys."""
    head = tl.program_id(1)
    dtype = keys.dtype.element_ty
    tile = tiles + tl.program_id(0) * 4
    first_row = tl.load(tile).to(tl.int64)
    num_rows = tl.load(tile + 1)
    start = tl.load(tile + 2)
    table = tables + tl.load(tile + 3).to(tl.int64) * table_width
    keys += head.to(tl.int64) * num_places * SIZE
    values += head.to(tl.int64) * num_places * SIZE

    m = tl.arange(0, QUERIES * GROUP_PAD)
    query, g = m // GROUP_PAD, m % GROUP_PAD
    d = tl.arange(0, SIZE_PAD)
    in_size = d < SIZE
    mask = ((query < num_rows) & (g < GROUP))[:, None] & in_size[None, :]
    row = first_row + query
    q_place = qkv + row[:, None] * row_width + (head * GROUP + g)[:, None] * SIZE
    q = tl.load(q_place + d[None, :], mask=mask, other=0.0)
    position = start + tl.minimum(query, num_rows - 1)

    scale = scale * 1.4426950408889634
    top = tl.full([QUERIES * GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES * GROUP_PAD], tl.float32)
    summed = tl.zeros([QUERIES * GROUP_PAD, SIZE_PAD], tl.float32)
    end = start + num_rows
    for begin in range(0, end, TILE):
        token = begin + tl.arange(0, TILE)
        is_live = token < end
        block = tl.load(table + token // BLOCK, mask=is_live, other=0).to(tl.int64)
        place = (block * BLOCK + token % BLOCK) * SIZE
        live = is_live[:, None] & in_size[None, :]
        k_tile = tl.load(keys + place[:, None] + d[None, :], mask=live, other=0.0)
        v_tile = tl.load(values + place[:, None] + d[None, :], mask=live, other=0.0)
        scores = tl.dot(q, tl.trans(k_tile), input_precision=PRECISION) * scale
        # Token 0 is seen by every query, so no query's first tile is empty.
        scores = tl.where(token[None, :] <= position[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        summed = summed * shrink[:, None]
        summed = tl.dot(weights.to(dtype), v_tile, summed, input_precision=PRECISION)
        top = new_top
    target = out + (row * HEADS + head * GROUP + g)[:, None] * SIZE + d[None, :]
    tl.store(target, (summed / total[:, None]).to(dtype), mask=mask)
