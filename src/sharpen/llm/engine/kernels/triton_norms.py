# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Row by row: embedding and norm, residual and norm, the gate of the feed-forward part.

Numbers are rounded to the model's dtype where the model's own code rounds them.
"""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit(do_not_specialize_on_alignment=["ids", "sources"])  # lines of a table of any width
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
