# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention of one new token a row to its text in the paged cache.

A program serves one row and one head of keys, with all queries that share it: each key is read once. It turns what it
needs and stores the new key and value on the way. With few rows the tokens of a text are split among several programs,
and a second kernel joins their parts.
"""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit
def turned(start, partner, norm, partner_norm, cos, sin, size, eps, HAS_NORM: tl.constexpr):
    """Numbers (rows, size) after their norm and their rotation; `partner` are those half a head away."""
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(start * start, 1) / size + eps)[:, None]
        start, partner = start * scale * norm, partner * scale * partner_norm
    return start * cos + partner * sin


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])  # lines of a table of any width
def decode(  # noqa: PLR0915 - a kernel is one function
    qkv, keys, values, cos, sin, tables, slots, positions,
    q_norm, k_norm, out, parts, tops, totals,
    row_width, table_width, num_places, scale, eps,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    GROUP_PAD: tl.constexpr, SIZE_PAD: tl.constexpr, TILE: tl.constexpr, HAS_NORM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    dtype = keys.dtype.element_ty
    position = tl.load(positions + row).to(tl.int32)
    table = tables + tl.load(slots + row).to(tl.int64) * table_width
    keys += head.to(tl.int64) * num_places * SIZE
    values += head.to(tl.int64) * num_places * SIZE

    g = tl.arange(0, GROUP_PAD)
    d = tl.arange(0, SIZE_PAD)
    far = tl.where(d < SIZE // 2, d + SIZE // 2, d - SIZE // 2)
    in_size = d < SIZE
    turn = tl.load(cos + position * SIZE + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
    swap = tl.load(sin + position * SIZE + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
    qkv += row * row_width
    q_place = qkv + (head * GROUP + g)[:, None] * SIZE
    q_mask = (g < GROUP)[:, None] & in_size[None, :]
    q = tl.load(q_place + d[None, :], mask=q_mask, other=0.0).to(tl.float32)
    q_far = tl.load(q_place + far[None, :], mask=q_mask, other=0.0).to(tl.float32)
    k_place = qkv + (KV_HEADS * GROUP + head) * SIZE
    k = tl.load(k_place + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
    k_far = tl.load(k_place + far, mask=in_size, other=0.0).to(tl.float32)[None, :]
    v = tl.load(k_place + KV_HEADS * SIZE + d, mask=in_size, other=0.0)
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
    q = q.to(dtype)
    k = k.to(dtype)

    # The new token is the first part's: it is at hand, not in the cache. Scores are kept in powers of two.
    scale = scale * 1.4426950408889634
    if split == 0:
        place = tl.load(table + position // BLOCK).to(tl.int64) * BLOCK + position % BLOCK
        tl.store(keys + place * SIZE + d[None, :], k, mask=in_size[None, :])
        tl.store(values + place * SIZE + d, v, mask=in_size)
        top = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
        total = tl.full([GROUP_PAD], 1.0, tl.float32)
        summed = tl.zeros([GROUP_PAD, SIZE_PAD], tl.float32) + v.to(tl.float32)[None, :]
    else:
        top = tl.full([GROUP_PAD], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_PAD], tl.float32)
        summed = tl.zeros([GROUP_PAD, SIZE_PAD], tl.float32)

    share = tl.cdiv(tl.cdiv(position, TILE), SPLITS) * TILE
    end = tl.minimum((split + 1) * share, position)
    for begin in range(split * share, end, TILE):
        token = begin + tl.arange(0, TILE)
        is_live = token < end
        block = tl.load(table + token // BLOCK, mask=is_live, other=0).to(tl.int64)
        place = (block * BLOCK + token % BLOCK) * SIZE
        live = is_live[:, None] & in_size[None, :]
        k_tile = tl.load(keys + place[:, None] + d[None, :], mask=live, other=0.0)
        v_tile = tl.load(values + place[:, None] + d[None, :], mask=live, other=0.0)
        scores = tl.dot(q, tl.trans(k_tile), input_precision=PRECISION) * scale
        scores = tl.where(is_live[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        summed = summed * shrink[:, None]
        summed = tl.dot(weights.to(dtype), v_tile, summed, input_precision=PRECISION)
        top = new_top

    number = row * KV_HEADS * GROUP + head * GROUP + g
    if SPLITS == 1:
        tl.store(out + number[:, None] * SIZE + d[None, :], (summed / total[:, None]).to(dtype), mask=q_mask)
    else:
        part = number * SPLITS + split
        tl.store(parts + part[:, None] * SIZE + d[None, :], summed, mask=q_mask)
        tl.store(tops + part, top, mask=g < GROUP)
        tl.store(totals + part, total, mask=g < GROUP)


@triton.jit
def join(
    parts, tops, totals, out, SIZE: tl.constexpr, SIZE_PAD: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """One row and one head of queries: its parts, each weighed by what it saw."""
    number = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, SPLITS)
    d = tl.arange(0, SIZE_PAD)
    in_size = d < SIZE
    top = tl.load(tops + number * SPLITS + s)
    weights = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(weights * tl.load(totals + number * SPLITS + s), 0)
    part = tl.load(
        parts + (number * SPLITS + s)[:, None] * SIZE + d[None, :], mask=in_size[None, :] & (s >= 0)[:, None], other=0.0
    )
    joined = tl.sum(part * weights[:, None], 0) / total
    tl.store(out + number * SIZE + d, joined.to(out.dtype.element_ty), mask=in_size)
