# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""One token a row by inverting its distribution at one uniform number, in the order of the token ids.

The first kernel looks at all logits once, chunk by chunk; the second finds the chunk in which the number falls and
looks at that one alone. Sums over chunks are taken in float64. As in `sampler`, no token of probability zero is drawn.
"""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit(do_not_specialize_on_alignment=["temperatures"])  # a line of a table of any width
def summarise(
    logits, temperatures, tops, places, sums, shaped, vocab, num_chunks,
    CHUNK: tl.constexpr, MIN_TEMPERATURE: tl.constexpr,
):  # fmt: skip
    """Of each chunk: its largest logit and where it is, and the sums of exp(logit - largest), plain and shaped."""
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
    # Rounding may leave the target behind the last share. Then the likeliest is taken, here and below.
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
