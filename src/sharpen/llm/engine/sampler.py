"""Drawing tokens from logits, with their log-probabilities, on the device and without waiting for it.

A row is drawn by inverting its distribution at one uniform number, in the order of the token ids. Filters (top-k,
top-p) only set probabilities to zero before that, so a row gets the same token whatever its neighbours ask for. The
vocabulary is summed in chunks, and the chunks in float64: the draw is exact to rounding for any size of vocabulary, and
only one chunk a row is looked at token by token.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNKS = (512, 256, 128)  # the first that divides the vocabulary, else the last and some padding
_CANDIDATES = 1024  # Nearly always hold the mass of top_p; where they do not, the whole vocabulary is sorted.

MIN_TEMPERATURE = 1e-6  # below it a division may give no number, and the likeliest token is as good as certain


@dataclass(frozen=True, slots=True)
class Mode:
    """What a batch needs, known before the step: each mode is one fixed sequence of operations."""

    has_greedy: bool
    has_sampled: bool
    has_temperature: bool  # some sampled row has one other than 1
    has_filter: bool
    num_top: int


@dataclass(frozen=True, slots=True)
class Settings:
    """One number a row. A row of temperature 0 takes the likeliest token; `uniform` is in [0, 1)."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    uniform: Tensor


def draw(logits: Tensor, settings: Settings, mode: Mode) -> tuple[Tensor, Tensor]:
    """The chosen ids, and all results in one tensor (3 + 2 x num_top, rows) of int32 for a single transfer:

    ids, bits of the log-probability under the sampled distribution, bits of the one under the model's own, then the
    likeliest ids and the bits of their log-probabilities.
    """
    top = logits.amax(-1, keepdim=True)
    weights = (logits - top).exp_()
    sums = _in_chunks(weights).sum(-1).double()
    log_total = sums.sum(-1).log() + top.squeeze(-1).double()
    if mode.has_sampled:
        if mode.has_temperature or mode.has_filter:
            weights = _shaped(logits, top, weights, settings, mode)
            sums = _in_chunks(weights).sum(-1).double()
        ids, logprob = _invert(weights, sums, settings.uniform)
        if mode.has_greedy:
            is_greedy = settings.temperature == 0.0
            ids = torch.where(is_greedy, logits.argmax(-1), ids)
            logprob = logprob.masked_fill(is_greedy, 0.0)
    else:
        ids, logprob = logits.argmax(-1), torch.zeros_like(log_total)
    chosen = logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    rows = [ids.int(), _bits(logprob), _bits(chosen.double() - log_total)]
    packed = torch.stack(rows)
    if mode.num_top:
        values, indices = logits.topk(mode.num_top, dim=-1)
        tops = values.double() - log_total.unsqueeze(-1)
        packed = torch.cat((packed, indices.int().t(), _bits(tops).t()))
    return ids, packed


def _shaped(logits: Tensor, top: Tensor, weights: Tensor, settings: Settings, mode: Mode) -> Tensor:
    """The weights after temperature, top-k and top-p."""
    if mode.has_temperature:
        # A greedy row's draw is thrown away; any temperature keeps it finite.
        temperature = settings.temperature.where(settings.temperature > 0.0, 1.0).unsqueeze(-1)
        weights = ((logits - top) / temperature.float().clamp_(min=MIN_TEMPERATURE)).exp_()
    return weights * _kept(weights, settings) if mode.has_filter else weights


def _invert(weights: Tensor, sums: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The token in whose share of the total `uniform` falls, and its log-probability."""
    chunks = _in_chunks(weights)
    ends = sums.cumsum(-1)
    target = (uniform * ends[:, -1]).unsqueeze(-1)
    chunk = (ends <= target).sum(-1, keepdim=True)
    # Rounding may leave the target behind the last share. Then the likeliest one is taken, here and below: never a
    # token of probability zero.
    chunk = torch.where(chunk < ends.shape[-1], chunk, sums.argmax(-1, keepdim=True))
    size = sums.gather(-1, chunk)
    share = (target - (ends.gather(-1, chunk) - size)) / size
    inside = chunks.gather(1, chunk.unsqueeze(-1).expand(-1, -1, chunks.shape[-1])).squeeze(1)
    # Measured against the chunk's own sum in float64: that of float32 may be larger by its rounding.
    steps = inside.double().cumsum(-1)
    place = (steps <= share * steps[:, -1:]).sum(-1, keepdim=True).clamp_(max=inside.shape[-1] - 1)
    place = torch.where(inside.gather(-1, place) > 0.0, place, inside.argmax(-1, keepdim=True))
    ids = (chunk * chunks.shape[-1] + place).squeeze(-1)
    weight = inside.gather(-1, place).squeeze(-1)
    return ids, weight.double().log() - ends[:, -1].log()


def _kept(weights: Tensor, settings: Settings) -> Tensor:
    """1 where top-k and top-p keep a token, 0 elsewhere."""
    size = weights.shape[-1]
    top_k = settings.top_k.where(settings.top_k > 0, size).unsqueeze(-1)
    if weights.device.type == "cpu" and size > _CANDIDATES:
        kept, is_enough = _kept_of_largest(weights, top_k, settings.top_p, _CANDIDATES)
        if is_enough:
            return kept
    return _kept_of_largest(weights, top_k, settings.top_p, size)[0]


def _kept_of_largest(weights: Tensor, top_k: Tensor, top_p: Tensor, count: int) -> tuple[Tensor, bool]:
    """What is kept when only the `count` largest weights are looked at, and (on the CPU) whether they suffice."""
    largest, order = weights.topk(count, dim=-1) if count < weights.shape[-1] else weights.sort(-1, descending=True)
    is_all = ((top_k >= weights.shape[-1]) & (top_p.unsqueeze(-1) >= 1.0)).squeeze(-1)
    within = torch.arange(count, device=weights.device).unsqueeze(0) < top_k
    shares = largest.double() * within
    all_shares = shares.sum(-1, keepdim=True)
    if count < weights.shape[-1]:
        # Rows without top-k measure their share against everything.
        all_shares = all_shares.where(top_k <= count, weights.sum(-1, keepdim=True, dtype=torch.float64))
    limit = top_p.unsqueeze(-1) * all_shares
    before = shares.cumsum(-1) - shares
    keep = (within & ((before < limit) | (top_p.unsqueeze(-1) >= 1.0))).to(weights.dtype)
    keep[:, 0] = 1.0
    kept = torch.zeros_like(weights).scatter_(-1, order, keep)
    kept = torch.where(is_all.unsqueeze(-1), torch.ones_like(kept), kept)
    if count == weights.shape[-1] or weights.device.type != "cpu":
        return kept, True
    is_past = (before[:, -1] >= limit.squeeze(-1)) & (top_k.squeeze(-1) >= weights.shape[-1])
    return kept, bool((is_all | is_past | (top_k.squeeze(-1) <= count)).all())


def _in_chunks(weights: Tensor) -> Tensor:
    size = weights.shape[-1]
    chunk = next((each for each in _CHUNKS if size % each == 0), _CHUNKS[-1])
    padded = F.pad(weights, (0, -size % chunk)) if size % chunk else weights
    return padded.view(weights.shape[0], -1, chunk)


def _bits(values: Tensor) -> Tensor:
    return values.float().contiguous().view(torch.int32)
