"""The blocks of the cache: which are free, who holds them, and which prefix of tokens each one keeps.

A block holds the keys and values of `block_size` neighbouring tokens. A full block is *known* by its tokens and by the
block before it, so that a later request with the same beginning finds it again. Invariants:
- a block is in exactly one of three states: free, held (one or more references), idle (known, but nobody holds it);
- idle blocks are given up in the order in which they were last released. A sequence releases its last block first, so
  the end of a prefix always goes before its beginning;
- block 0 belongs to nobody: rows that only fill up a batch write there.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

Key = tuple[int, tuple[int, ...]]
ROOT = 0  # the parent of a first block


class BlockPool:
    """Hands out blocks. Nothing here is locked: the engine calls it from one thread at a time."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free = list(range(num_blocks, 0, -1))
        self._references = [0] * (num_blocks + 1)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._known: dict[Key, tuple[int, int]] = {}  # key -> (block, its prefix's number)
        self._key_of: dict[int, Key] = {}
        self._last_prefix = ROOT

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._idle)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def needed(self, num_tokens: int) -> int:
        """How many blocks so many tokens fill or begin."""
        return -(-num_tokens // self.block_size)

    def allocate(self) -> int:
        """A block for one holder; an idle one is given up when none is free."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        self._references[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more holder of a block that is held or idle."""
        self._idle.pop(block, None)
        self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """The holder of these blocks, given in the order of their tokens, is done with them."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._key_of:
                self._idle[block] = None
            else:
                self._free.append(block)

    def find(self, tokens: Sequence[int], *, limit: int) -> tuple[list[int], list[int]]:
        """Known blocks that hold the beginning of `tokens` (at most `limit` blocks), and their prefixes' numbers."""
        blocks: list[int] = []
        prefixes: list[int] = []
        parent = ROOT
        for number in range(limit):
            found = self._known.get((parent, self._tokens_of(tokens, number)))
            if found is None:
                break
            block, parent = found
            blocks.append(block)
            prefixes.append(parent)
        return blocks, prefixes

    def learn(self, block: int, parent: int, tokens: Sequence[int], number: int) -> int:
        """Make a full block known under its prefix, unless another block is already; return the prefix's number."""
        key = (parent, self._tokens_of(tokens, number))
        found = self._known.get(key)
        if found is not None:
            return found[1]
        self._last_prefix += 1
        self._known[key] = (block, self._last_prefix)
        self._key_of[block] = key
        return self._last_prefix

    def forget_all(self) -> None:
        """No block is known any more; held ones stay with their holders."""
        self._free.extend(self._idle)
        self._idle.clear()
        self._known.clear()
        self._key_of.clear()

    def chain(self, tokens: Sequence[int], numbers: Iterable[int]) -> list[int]:
        """A hash for each of these blocks that covers all tokens up to its end; `numbers` start at 0 and run on."""
        hashes: list[int] = []
        last = 0
        for number in numbers:
            last = hash((last, self._tokens_of(tokens, number)))
            hashes.append(last)
        return hashes

    def _tokens_of(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        return tuple(tokens[number * self.block_size : (number + 1) * self.block_size])

    def _forget(self, block: int) -> None:
        del self._known[self._key_of.pop(block)]
