# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Distributions over the vocabulary in Triton: drawing one token a row, and scoring given tokens for training.

A token is drawn by inverting its distribution at one uniform number, in the order of the token ids. `summarise` reads
all logits once, chunk by chunk; `invert` finds the chunk into which the number falls and reads only that one. Sums over
chunks are taken in float64. As in `sampler`, a token of probability zero is never drawn.
"""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit(do_not_specialize_on_alignment=["temperatures"])  # a row of a table of any width
def summarise(
    logits, temperatures, tops, places, sums, shaped, vocab, num_chunks,
    CHUNK: tl.constexpr, MIN_TEMPERATURE: tl.constexpr,
):  # fmt: skip
    """Write each chunk's largest logit and its place, and its sums of exp(logit - largest), plain and tempered."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * vocab + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
    top = tl.max(values, 0)
    finite_top = tl.where(top == float("-inf"), 0.0, top)
    given = tl.load(temperatures + row)
    temperature = tl.where(given > 0.0, tl.maximum(given, MIN_TEMPERATURE), 1.0).to(tl.float32)
    at = row * num_chunks + chunk
    tl.store(tops + at, top)
    tl.store(places + at, chunk * CHUNK + tl.argmax(values, 0))
    tl.store(sums + at, tl.sum(tl.exp(values - finite_top), 0))
    tl.store(shaped + at, tl.sum(tl.exp((values - finite_top) / temperature), 0))


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["temperatures", "uniforms"])
def invert(
    logits, temperatures, uniforms, tops, places, sums, shaped,
    ids, packed, vocab, num_chunks, num_rows,
    CHUNK: tl.constexpr, CHUNKS_PAD: tl.constexpr, MIN_TEMPERATURE: tl.constexpr,
):  # fmt: skip
    """Find the chunk that the uniform number falls into, then the token inside it."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CHUNKS_PAD)
    is_chunk = c < num_chunks
    at = row * num_chunks + c
    given = tl.load(temperatures + row)
    temperature = tl.where(given > 0.0, tl.maximum(given, MIN_TEMPERATURE), 1.0)
    chunk_tops = tl.load(tops + at, mask=is_chunk, other=float("-inf")).to(tl.float64)
    top = tl.max(chunk_tops, 0)
    plain = tl.load(sums + at, mask=is_chunk, other=0.0).to(tl.float64) * tl.exp(chunk_tops - top)
    log_total = tl.log(tl.sum(plain, 0))
    weights = tl.load(shaped + at, mask=is_chunk, other=0.0).to(tl.float64) * tl.exp((chunk_tops - top) / temperature)
    ends = tl.cumsum(weights, 0)
    total = tl.sum(weights, 0)
    target = tl.load(uniforms + row) * total
    # Rounding may put the target past the last share. Then the likeliest is taken, here and below.
    chunk = tl.sum((is_chunk & (ends <= target)).to(tl.int32), 0)
    chunk = tl.where(chunk < num_chunks, chunk, tl.argmax(weights, 0))
    weight = tl.sum(tl.where(c == chunk, weights, 0.0), 0)
    end = tl.sum(tl.where(c == chunk, ends, 0.0), 0)
    chunk_top = tl.sum(tl.where(c == chunk, chunk_tops, 0.0), 0)
    share = (target - (end - weight)) / weight

    p = tl.arange(0, CHUNK)
    place = chunk * CHUNK + p
    is_token = place < vocab
    values = tl.load(logits + row * vocab + place, mask=is_token, other=float("-inf")).to(tl.float32)
    inside = tl.exp((values - chunk_top.to(tl.float32)) / temperature.to(tl.float32)).to(tl.float64)
    steps = tl.cumsum(inside, 0)
    all_steps = tl.max(steps, 0)
    found = tl.sum((steps <= share * all_steps).to(tl.int32), 0)
    found = tl.minimum(found, CHUNK - 1)
    is_possible = tl.sum(tl.where(p == found, inside, 0.0), 0) > 0.0
    found = tl.where(is_possible, found, tl.argmax(inside, 0))
    best = tl.argmax(chunk_tops, 0)
    likeliest = tl.sum(tl.where(c == best, tl.load(places + at, mask=is_chunk, other=0), 0), 0)
    is_greedy = given <= 0.0
    chosen = tl.where(is_greedy, likeliest, chunk * CHUNK + found)
    logit = tl.load(logits + row * vocab + chosen).to(tl.float64)
    logprob = tl.where(is_greedy, 0.0, (logit - top) / temperature - tl.log(total))
    tl.store(ids + row, chosen.to(tl.int64))
    tl.store(packed + row, chosen)
    tl.store(packed + num_rows + row, logprob.to(tl.float32).to(tl.int32, bitcast=True))
    tl.store(packed + 2 * num_rows + row, (logit - top - log_total).to(tl.float32).to(tl.int32, bitcast=True))


# -- training ---------------------------------------------------------------------------------------


@triton.jit
def score(logits, targets, temperatures, logprobs, entropies, tops, vocab, WIDTH: tl.constexpr):
    """Read one row of logits once: the log-probability of its target, its entropy and its log-sum-exp."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocab
    heat = 1.0 / tl.load(temperatures + row).to(tl.float32)
    p = tl.arange(0, WIDTH)
    # Each lane keeps its own running sums; they are combined at the end.
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
def score_backward(logits, targets, temperatures, tops, grad, vocab, WIDTH: tl.constexpr):
    """Overwrite a row of logits with its gradient."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocab
    heat = 1.0 / tl.load(temperatures + row).to(tl.float32)
    place = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = place < vocab
    z = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32) * heat
    share = tl.exp(z - tl.load(tops + row))
    is_target = place == tl.load(targets + row)
    slope = tl.load(grad + row).to(tl.float32) * heat * (tl.where(is_target, 1.0, 0.0) - share)
    tl.store(logits + place, slope.to(logits.dtype.element_ty), mask=inside)
