"""The keys and values of all tokens in the cache, by layer and block."""

import torch
from torch import Tensor


class PagedCache:
    """One tensor of keys and one of values per layer, shaped (heads, blocks x tokens of a block, head size).

    Of each head a block is one piece of memory, and what is gathered comes head by head: products over it need no copy.
    The blocks are numbered from 1; block 0 takes what belongs to nobody.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size, self.num_heads, self.head_size = block_size, num_heads, head_size
        shape = (num_layers, num_heads, (num_blocks + 1) * block_size, head_size)
        # Zeros, not empty memory: what lies behind the live part is masked, but a NaN there would spread.
        self._all = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)]
        self.keys, self.values = (list(each.unbind()) for each in self._all)

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values (tokens, heads, head size) at these places (block x block size + offset)."""
        self.keys[layer].index_copy_(1, places, keys.transpose(0, 1))
        self.values[layer].index_copy_(1, places, values.transpose(0, 1))

    def read(self, layer: int, tables_B_N: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the blocks in each row of the tables: (heads, rows, tokens, head size)."""
        rows, num_blocks = tables_B_N.shape
        shape = (self.num_heads, rows, num_blocks * self.block_size, self.head_size)
        chosen = tables_B_N.reshape(-1)
        keys = self._blocks(self.keys[layer]).index_select(1, chosen).view(shape)
        values = self._blocks(self.values[layer]).index_select(1, chosen).view(shape)
        return keys, values

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to)."""
        if not pairs:
            return
        sources, targets = torch.tensor(pairs).to(self.keys[0].device, non_blocking=True).unbind(1)
        for layers in self._all:
            blocks = layers.view(-1, layers.shape[2] // self.block_size, self.block_size * self.head_size)
            blocks.index_copy_(1, targets, blocks.index_select(1, sources))

    def _blocks(self, tensor: Tensor) -> Tensor:
        return tensor.view(self.num_heads, -1, self.block_size * self.head_size)
