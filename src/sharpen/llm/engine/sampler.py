"""Drawing tokens from logits, with their log-probabilities, on the device and without waiting for it.

A row is drawn by inverting its distribution at one uniform number, in the order of the token ids. Filters (top-k,
top-p) only set probabilities to zero before that, so the settings of other rows never change a row's token. The
vocabulary is summed in chunks, and the chunks in float64: the draw is exact to rounding for any size of vocabulary, and
only one chunk of a row is searched token by token.

The uniform numbers depend only on a seed and a place in the text: they come from a counter-based generator (the
finaliser of splitmix64). The number of a place is the same in any batch, after any interruption and in any order of
requests, which makes seeded requests reproducible.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNKS = (512, 256, 128)  # the first that divides the vocabulary, else the last and some padding
_CANDIDATES = 1024  # nearly always enough for the mass of top_p; otherwise the whole vocabulary is sorted

MIN_TEMPERATURE = 1e-6  # below it a division may overflow, and the likeliest token is practically certain

_GAMMA = 0x9E3779B97F4A7C15
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Mode:
    """Which operations a batch needs, known before the step: each mode is one fixed sequence of operations."""

    has_greedy: bool
    has_sampled: bool
    has_temperature: bool  # some sampled row has one other than 1
    has_filter: bool
    num_top: int


@dataclass(frozen=True, slots=True)
class Settings:
    """One number for each row. A row of temperature 0 takes the likeliest token; `uniform` is in [0, 1)."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    uniform: Tensor


def draw(logits: Tensor, settings: Settings, mode: Mode) -> tuple[Tensor, Tensor]:
    """Return the chosen ids, and all results in one int32 tensor (3 + 2 x num_top, rows) for a single transfer.

    Its lines are the ids, the bits of the log-probability under the sampled distribution, the bits of the one under the
    model's own, then the likeliest ids and the bits of their log-probabilities.
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
    """Return the weights after temperature, top-k and top-p."""
    if mode.has_temperature:
        # A greedy row's draw is discarded; any temperature keeps it finite.
        temperature = settings.temperature.where(settings.temperature > 0.0, 1.0).unsqueeze(-1)
        weights = ((logits - top) / temperature.float().clamp_(min=MIN_TEMPERATURE)).exp_()
    return weights * _kept(weights, settings) if mode.has_filter else weights


def _invert(weights: Tensor, sums: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token into whose share of the total `uniform` falls, and its log-probability."""
    chunks = _in_chunks(weights)
    ends = sums.cumsum(-1)
    target = (uniform * ends[:, -1]).unsqueeze(-1)
    chunk = (ends <= target).sum(-1, keepdim=True)
    # Rounding may put the target past the last share. Then the likeliest one is taken, here and below: never a
    # token of probability zero.
    chunk = torch.where(chunk < ends.shape[-1], chunk, sums.argmax(-1, keepdim=True))
    size = sums.gather(-1, chunk)
    share = (target - (ends.gather(-1, chunk) - size)) / size
    inside = chunks.gather(1, chunk.unsqueeze(-1).expand(-1, -1, chunks.shape[-1])).squeeze(1)
    # Relative to the chunk's own sum in float64: the float32 sum may be larger by its rounding.
    steps = inside.double().cumsum(-1)
    place = (steps <= share * steps[:, -1:]).sum(-1, keepdim=True).clamp_(max=inside.shape[-1] - 1)
    place = torch.where(inside.gather(-1, place) > 0.0, place, inside.argmax(-1, keepdim=True))
    ids = (chunk * chunks.shape[-1] + place).squeeze(-1)
    weight = inside.gather(-1, place).squeeze(-1)
    return ids, weight.double().log() - ends[:, -1].log()


def _kept(weights: Tensor, settings: Settings) -> Tensor:
    """Return 1 where top-k and top-p keep a token, 0 elsewhere."""
    size = weights.shape[-1]
    top_k = settings.top_k.where(settings.top_k > 0, size).unsqueeze(-1)
    if weights.device.type == "cpu" and size > _CANDIDATES:
        kept, is_enough = _kept_of_largest(weights, top_k, settings.top_p, _CANDIDATES)
        if is_enough:
            return kept
    return _kept_of_largest(weights, top_k, settings.top_p, size)[0]


def _kept_of_largest(weights: Tensor, top_k: Tensor, top_p: Tensor, count: int) -> tuple[Tensor, bool]:
    """Return what is kept of the `count` largest weights, and (on the CPU) whether these suffice."""
    largest, order = weights.topk(count, dim=-1) if count < weights.shape[-1] else weights.sort(-1, descending=True)
    is_all = ((top_k >= weights.shape[-1]) & (top_p.unsqueeze(-1) >= 1.0)).squeeze(-1)
    within = torch.arange(count, device=weights.device).unsqueeze(0) < top_k
    shares = largest.double() * within
    all_shares = shares.sum(-1, keepdim=True)
    if count < weights.shape[-1]:
        # The shares of rows without top-k are relative to the whole vocabulary.
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


# -- uniform numbers --------------------------------------------------------------------------------


def sample_seed(seed: int, index: int) -> int:
    """Return the seed of one of the samples of a request."""
    return int(_mixed(np.array([(seed * 0xD1342543DE82EF95 + index * _GAMMA) & _MASK], dtype=np.uint64))[0])


def uniforms(seeds: npt.NDArray[np.uint64], places: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1), one for each pair of seed and place."""
    with np.errstate(over="ignore"):
        mixed = _mixed(seeds + (places + np.uint64(1)) * np.uint64(_GAMMA))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _FIRST
        values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))
