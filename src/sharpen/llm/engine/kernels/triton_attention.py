# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention over the paged cache in Triton: `decode` for one new token a row, `prefill` for many tokens of a text.

A program of `decode` serves one row and one key head, with all queries that share it, so each key is read once. It also
rotates its queries and keys and stores the new key and value. With few rows, the tokens of a text are split among
several programs, and `join` combines their results. A prefill stores all keys and values first
(`rotate_and_store`); then each tile of queries reads them.
"""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit
def rotated(x, partner, norm, partner_norm, cos, sin, size, eps, HAS_NORM: tl.constexpr):
    """Return x (rows, size) normalised and rotated; `partner` holds the numbers half a head away."""
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / size + eps)[:, None]
        x, partner = x * scale * norm, partner * scale * partner_norm
    return x * cos + partner * sin


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])  # rows of a table of any width
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
    cos_row = tl.load(cos + position * SIZE + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
    sin_row = tl.load(sin + position * SIZE + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
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
        q = rotated(q, q_far, wq, wq_far, cos_row, sin_row, SIZE, eps, True)
        k = rotated(k, k_far, wk, wk_far, cos_row, sin_row, SIZE, eps, True)
    else:
        q = rotated(q, q_far, q, q_far, cos_row, sin_row, SIZE, eps, False)
        k = rotated(k, k_far, k, k_far, cos_row, sin_row, SIZE, eps, False)
    q = q.to(dtype)
    k = k.to(dtype)

    # The first split takes the new token, which is in registers and not in the cache yet. Scores are powers of two.
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
    """Combine the splits of one row and one query head, each weighted by its share of the softmax."""
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


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])  # rows of a table of any width
def rotate_and_store(
    qkv, keys, values, cos, sin, tables, slots, positions,
    q_norm, k_norm, row_width, table_width, num_places, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    HEADS_PAD: tl.constexpr, KV_PAD: tl.constexpr, SIZE_PAD: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Rotate the queries of one row in place, and store its keys and values in the cache."""
    row = tl.program_id(0).to(tl.int64)
    dtype = keys.dtype.element_ty
    position = tl.load(positions + row).to(tl.int32)
    d = tl.arange(0, SIZE_PAD)
    far = tl.where(d < SIZE // 2, d + SIZE // 2, d - SIZE // 2)
    in_size = d < SIZE
    cos_row = tl.load(cos + position * SIZE + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
    sin_row = tl.load(sin + position * SIZE + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
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
        q = rotated(q, q_far, wq, wq_far, cos_row, sin_row, SIZE, eps, True)
        k = rotated(k, k_far, wk, wk_far, cos_row, sin_row, SIZE, eps, True)
    else:
        q = rotated(q, q_far, q, q_far, cos_row, sin_row, SIZE, eps, False)
        k = rotated(k, k_far, k, k_far, cos_row, sin_row, SIZE, eps, False)
    # Every thread must have read before any writes: the two halves of a head are each other's partners.
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
    """Attend for one tile: adjacent queries of one text, with all query heads that share one key head."""
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
        # Every query sees token 0, so the first tile is never fully masked.
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
