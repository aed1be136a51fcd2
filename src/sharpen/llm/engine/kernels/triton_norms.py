# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Norms, gates and rotations in Triton, one pass over memory each: for sampling, then with gradients for training.

Numbers are rounded to the model's dtype where the model's own code rounds them.
"""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit(do_not_specialize_on_alignment=["ids", "sources"])  # rows of a table of any width
def embed_norm(
    ids, sources, last_ids, table, weight, x, h, size, eps,
    HAS_SOURCES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chosen = tl.load(ids + row)
    if HAS_SOURCES:
        source = tl.load(sources + row)
        known = tl.load(last_ids + tl.maximum(source, 0))
        chosen = tl.where(source >= 0, known, chosen)
    place = tl.arange(0, WIDTH)
    inside = place < size
    values = tl.load(table + chosen * size + place, mask=inside, other=0.0)
    tl.store(x + row * size + place, values, mask=inside)
    normed = _normed(values.to(tl.float32), weight, place, inside, size, eps, values.dtype)
    tl.store(h + row * size + place, normed, mask=inside)


@triton.jit
def add_norm(x, delta, weight, h, size, eps, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH)
    inside = place < size
    old = tl.load(x + row * size + place, mask=inside, other=0.0)
    new = tl.load(delta + row * size + place, mask=inside, other=0.0)
    total = (old.to(tl.float32) + new.to(tl.float32)).to(old.dtype)
    tl.store(x + row * size + place, total, mask=inside)
    normed = _normed(total.to(tl.float32), weight, place, inside, size, eps, old.dtype)
    tl.store(h + row * size + place, normed, mask=inside)


@triton.jit
def _normed(values, weight, place, inside, size, eps, dtype: tl.constexpr):
    mean = tl.sum(values * values, 0) / size
    scaled = (values * tl.rsqrt(mean + eps)).to(dtype).to(tl.float32)
    return (scaled * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)).to(dtype)


@triton.jit
def gate(gate_up, out, size, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = place < size
    left = tl.load(gate_up + row * 2 * size + place, mask=inside, other=0.0)
    right = tl.load(gate_up + row * 2 * size + size + place, mask=inside, other=0.0)
    wide = left.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(left.dtype).to(tl.float32)
    tl.store(out + row * size + place, (active * right.to(tl.float32)).to(left.dtype), mask=inside)


# -- training ---------------------------------------------------------------------------------------


@triton.jit
def rotate(
    x, cos, sin, out, heads, row_stride,
    SIZE: tl.constexpr, SIZE_PAD: tl.constexpr, HEADS_PAD: tl.constexpr, IS_BACKWARD: tl.constexpr,
):  # fmt: skip
    """Rotate all heads of one row. The backward pass uses the sine of the partner instead of its own."""
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
    place = far if IS_BACKWARD else d
    s = tl.load(sin + row * SIZE + place, mask=in_size, other=0.0).to(tl.float32)[None, :]
    target = out + row * heads * SIZE + h * SIZE + d[None, :]
    tl.store(target, (own * c + other * s).to(out.dtype.element_ty), mask=mask)


@triton.jit
def gate_forward(left, right, out, count, WIDTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = place < count
    g = tl.load(left + place, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(right + place, mask=inside, other=0.0).to(tl.float32)
    active = (g * tl.sigmoid(g)).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + place, (active * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_backward(left, right, grad, grad_left, grad_right, count, WIDTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = place < count
    g = tl.load(left + place, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(right + place, mask=inside, other=0.0).to(tl.float32)
    t = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    half = tl.sigmoid(g)
    active = g * half
    dtype = grad_left.dtype.element_ty
    tl.store(grad_left + place, (t * u * (half + active * (1.0 - half))).to(dtype), mask=inside)
    tl.store(grad_right + place, (t * active).to(dtype), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def add_norm_forward(
    x, delta, weight, total, out, scales, num_rows, size, eps, HAS_DELTA: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the sum, its norm, and the scale that the backward pass needs, for one row."""
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
def add_norm_backward(
    total, weight, scales, grad_total, grad_out, grad_x, grad_weight, num_rows, size, WIDTH: tl.constexpr
):  # fmt: skip
    """Loop over every n-th row, so that one program sums its part of the weight's gradient."""
    place = tl.arange(0, WIDTH)
    inside = place < size
    w = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros([WIDTH], tl.float32)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        at = (tl.zeros([WIDTH], tl.int64) + row) * size + place
        normed = tl.load(total + at, mask=inside, other=0.0).to(tl.float32) * tl.load(scales + row)
        grad = tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
        summed += grad * normed
        pulled = grad * w
        slope = (pulled - normed * (tl.sum(pulled * normed, 0) / size)) * tl.load(scales + row)
        slope += tl.load(grad_total + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x + at, slope.to(grad_x.dtype.element_ty), mask=inside)
    tl.store(grad_weight + tl.program_id(0) * size + place, summed, mask=inside)


@triton.jit
def add_to(total, part, count, WIDTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = place < count
    new = tl.load(part + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + place, tl.load(total + place, mask=inside, other=0.0) + new, mask=inside)
