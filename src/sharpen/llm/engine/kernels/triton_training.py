# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Rotation, gate and distribution with what their gradients need, each in one pass over memory."""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit
def turn(
    x, cos, sin, out, heads, row_stride,
    SIZE: tl.constexpr, SIZE_PAD: tl.constexpr, HEADS_PAD: tl.constexpr, IS_BACK: tl.constexpr,
):  # fmt: skip
    """All heads of one row. Backwards, a number meets the sine of its partner instead of its own."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS_PAD)[:, None]
    d = tl.arange(0, SIZE_PAD)
    far = tl.where(d < SIZE // 2, d + SIZE // 2, d - SIZE // 2)
    in_size = d < SIZE
    mask = (h < heads) & in_size[None, :]
    start = x + row * row_stride + h * SIZE
    own = tl.load(start + d[None, :], mask=mask, other=0.0).to(tl.float32)
    other = tl.load(start + far[None, :], mask=mask, other=0.0).to(tl.float32)
    c = tl.load(cos + row * SIZE + d, mask=in_size, other=0.0).to(tl.float32)[None, :]
    place = far if IS_BACK else d
    s = tl.load(sin + row * SIZE + place, mask=in_size, other=0.0).to(tl.float32)[None, :]
    target = out + row * heads * SIZE + h * SIZE + d[None, :]
    tl.store(target, (own * c + other * s).to(out.dtype.element_ty), mask=mask)


@triton.jit
def gate(left, right, out, count, WIDTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = place < count
    g = tl.load(left + place, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(right + place, mask=inside, other=0.0).to(tl.float32)
    active = (g * tl.sigmoid(g)).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + place, (active * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_back(left, right, toward, toward_left, toward_right, count, WIDTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = place < count
    g = tl.load(left + place, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(right + place, mask=inside, other=0.0).to(tl.float32)
    t = tl.load(toward + place, mask=inside, other=0.0).to(tl.float32)
    half = tl.sigmoid(g)
    active = g * half
    dtype = toward_left.dtype.element_ty
    tl.store(toward_left + place, (t * u * (half + active * (1.0 - half))).to(dtype), mask=inside)
    tl.store(toward_right + place, (t * active).to(dtype), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def add_norm(
    x, delta, weight, total, out, scales, num_rows, size, eps, HAS_DELTA: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """One row: the sum of both, its norm, and by what it was scaled."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH)
    inside = place < size
    dtype = out.dtype.element_ty
    value = tl.load(x + row * size + place, mask=inside, other=0.0)
    if HAS_DELTA:
        more = tl.load(delta + row * size + place, mask=inside, other=0.0).to(tl.float32)
        value = (value.to(tl.float32) + more).to(dtype)
        tl.store(total + row * size + place, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    scaled = (wide * scale).to(dtype).to(tl.float32)
    normed = scaled * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + place, normed.to(dtype), mask=inside)
    tl.store(scales + row, scale)


@triton.jit(do_not_specialize=["num_rows"])
def add_norm_back(
    total, weight, scales, toward_total, toward_out, toward_x, toward_weight, num_rows, size, WIDTH: tl.constexpr
):  # fmt: skip
    """Every so many rows one after the other, so that the weight's gradient is summed on the way."""
    place = tl.arange(0, WIDTH)
    inside = place < size
    w = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros([WIDTH], tl.float32)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        at = (tl.zeros([WIDTH], tl.int64) + row) * size + place
        normed = tl.load(total + at, mask=inside, other=0.0).to(tl.float32) * tl.load(scales + row)
        toward = tl.load(toward_out + at, mask=inside, other=0.0).to(tl.float32)
        summed += toward * normed
        pulled = toward * w
        slope = (pulled - normed * (tl.sum(pulled * normed, 0) / size)) * tl.load(scales + row)
        slope += tl.load(toward_total + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(toward_x + at, slope.to(toward_x.dtype.element_ty), mask=inside)
    tl.store(toward_weight + tl.program_id(0) * size + place, summed, mask=inside)


@triton.jit
def score(logits, targets, temperatures, logprobs, entropies, tops, vocab, WIDTH: tl.constexpr):
    """One row of logits, read once: log-probability of its target, entropy, and the logarithm of the sum."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocab
    heat = 1.0 / tl.load(temperatures + row).to(tl.float32)
    p = tl.arange(0, WIDTH)
    # Each lane has its own running sums; they are joined at the end.
    top = tl.full([WIDTH], float("-inf"), tl.float32)
    total = tl.zeros([WIDTH], tl.float32)
    weighed = tl.zeros([WIDTH], tl.float32)
    for begin in range(0, vocab, WIDTH):
        place = begin + p
        z = tl.load(logits + place, mask=place < vocab, other=float("-inf")).to(tl.float32) * heat
        new_top = tl.maximum(top, z)
        finite = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink = tl.exp(top - finite)
        weight = tl.exp(z - finite)
        total = total * shrink + weight
        weighed = weighed * shrink + tl.where(weight > 0.0, z * weight, 0.0)
        top = new_top
    highest = tl.max(top, 0)
    scale = tl.exp(top - highest)
    all_total = tl.sum(total * scale, 0)
    log_total = highest + tl.log(all_total)
    target = tl.load(logits + tl.load(targets + row)).to(tl.float32) * heat
    tl.store(logprobs + row, target - log_total)
    tl.store(entropies + row, log_total - tl.sum(weighed * scale, 0) / all_total)
    tl.store(tops + row, log_total)


@triton.jit
def score_back(logits, targets, temperatures, tops, toward, vocab, WIDTH: tl.constexpr):
    """The gradient of a row's logits, written over them."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocab
    heat = 1.0 / tl.load(temperatures + row).to(tl.float32)
    place = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = place < vocab
    z = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32) * heat
    share = tl.exp(z - tl.load(tops + row))
    is_target = place == tl.load(targets + row)
    slope = tl.load(toward + row).to(tl.float32) * heat * (tl.where(is_target, 1.0, 0.0) - share)
    tl.store(logits + place, slope.to(logits.dtype.element_ty), mask=inside)


@triton.jit
def add(total, part, count, WIDTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = place < count
    new = tl.load(part + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + place, tl.load(total + place, mask=inside, other=0.0) + new, mask=inside)
