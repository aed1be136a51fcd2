"""Attention within a token tree: each row attends to itself and to the tokens before it in its sequence."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .token_tree import Branch, TokenTree
from .transfer import moved

_FLASH_HEAD_SIZE = 256  # the widest heads that the kernel takes


class TreeAttention:
    """Made once for a tree, called in each layer with (rows, heads, head size); gives (rows, heads x head size)."""

    def __init__(self, tree: TokenTree) -> None:
        self._branches = tree.branches
        device = tree.input_ids_R.device
        self._flash = FlashLayout(tree) if device.type == "cuda" else None
        self._spans: list[_Span] | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._flash is not None and _suits_flash(q):
            return self._flash(q, k, v).flatten(1)
        if self._spans is None:
            self._spans = [_span(each, q.device) for each in self._branches]
        # Kernels take a mask only with as many heads of keys as of queries.
        copies = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)
        return torch.cat([_of_span(each, q, k, v) for each in self._spans]).flatten(1)


class _Span(NamedTuple):
    """A branch that begins a sequence has no path and no mask: its keys are its own rows, in plain causal order."""

    rows: slice
    path_T: Tensor | None
    mask: Tensor | None


def _span(branch: Branch, device: torch.device) -> _Span:
    rows = slice(branch.first, branch.last)
    if branch.start == 0:
        return _Span(rows, None, None)
    places = torch.arange(branch.length, device=device)
    return _Span(rows, torch.from_numpy(branch.path_T).to(device), places[None, :] <= places[branch.start :, None])


def _of_span(span: _Span, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if span.path_T is None:
        k, v = k[span.rows], v[span.rows]
    else:
        k, v = k.index_select(0, span.path_T), v.index_select(0, span.path_T)
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (q[span.rows], k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=span.mask, is_causal=span.mask is None)
    return out[0].transpose(0, 1)


class FlashLayout:
    """All branches in one call of the flash kernel, which knows lengths instead of masks.

    Where there are more keys than queries, its causal order lines up their ends, as it must be here.
    """

    def __init__(self, tree: TokenTree) -> None:
        device = tree.input_ids_R.device
        queries = [branch.last - branch.first for branch in tree.branches]
        keys = [branch.length for branch in tree.branches]
        self.ends_q, self.ends_k = _ends(queries, device), _ends(keys, device)
        self.max_q, self.max_k = max(queries), max(keys)
        paths = np.concatenate([each.path_T for each in tree.branches])
        self._paths = moved(torch.from_numpy(paths), device) if tree.is_shared else None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lengths = self.ends_q, self.ends_k, self.max_q, self.max_k
        keys, values = self.gathered(k), self.gathered(v)
        out: Tensor = torch.ops.aten._flash_attention_forward(q, keys, values, *lengths, 0.0, True, False)[0]
        return out

    def gathered(self, rows: Tensor) -> Tensor:
        """Keys or values of all branches, one after the other, each from the beginning of its sequence."""
        return rows if self._paths is None else rows.index_select(0, self._paths)


def _suits_flash(q: Tensor) -> bool:
    size = q.shape[2]
    return q.dtype in {torch.bfloat16, torch.float16} and size <= _FLASH_HEAD_SIZE and size % 8 == 0


def _ends(lengths: list[int], device: torch.device) -> Tensor:
    return moved(F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int(), device)
