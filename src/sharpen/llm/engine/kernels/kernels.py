"""The kernels by name. Two sets have them: one in plain torch, which says what is computed, and one in Triton.

Rows are tokens of many texts side by side. Their keys and values lie in blocks of the cache; `tables` names the blocks
of each text in their order, and a row says by its slot which line of `tables` is its own.
"""

import importlib.util
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..sampler import Mode, Settings

_TILE_ROWS = 128  # queries times the heads that share keys, in one tile of a prefill


@dataclass(frozen=True, slots=True)
class Heads:
    """The sizes of attention."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int

    @property
    def width(self) -> int:
        """Numbers a row of queries, keys and values side by side."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_size

    @property
    def tile_rows(self) -> int:
        """How many rows of one text a tile of a prefill holds."""
        group = self.num_heads // self.num_kv_heads
        return max(16, _TILE_ROWS >> (group - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Rotations:
    """Cosines and signed sines of every position (positions, head size)."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class LayerHeads:
    """What is a layer's own: its cache (heads, places, head size), and the norms of its heads where it has them."""

    keys: Tensor
    values: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """One row a text: its newest token, whose keys are not in the cache yet. `num_splits` share the reading of each."""

    slots: Tensor
    positions: Tensor
    tables: Tensor
    num_splits: int


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Many rows a text. A tile (first row, rows, position of its first row, slot) holds neighbours of one text."""

    slots: Tensor
    positions: Tensor
    tables: Tensor
    tiles: Tensor


class Kernels(Protocol):
    """`x` is the stream of residuals, which `add_norm` changes in place."""

    def embed(
        self, ids: Tensor, sources: Tensor | None, last_ids: Tensor, table: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """The embeddings of these ids and their norm; where a source is not negative, the id is last_ids[source]."""
        ...

    def add_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add `delta` to `x`; the norm of the sum."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu of the first half of each row times the second half."""
        ...

    def decode(self, qkv: Tensor, heads: Heads, layer: LayerHeads, turn: Rotations, rows: DecodeRows) -> Tensor:
        """Turn queries and keys, store keys and values, attend to all tokens of each row's text up to itself."""
        ...

    def prefill(self, qkv: Tensor, heads: Heads, layer: LayerHeads, turn: Rotations, rows: PromptRows) -> Tensor:
        """The same for rows of which many belong to one text."""
        ...

    def draw(self, logits: Tensor, settings: Settings, mode: Mode) -> tuple[Tensor, Tensor]:
        """As `sampler.draw`."""
        ...


def is_triton_there() -> bool:
    return importlib.util.find_spec("triton") is not None


def kernels_for(device: torch.device) -> Kernels:
    """The fastest that run there."""
    if device.type == "cuda" and is_triton_there():
        from .triton_kernels import TritonKernels

        return TritonKernels()
    from .torch_kernels import TorchKernels

    return TorchKernels()
