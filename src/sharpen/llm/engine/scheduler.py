"""Which sequences are computed in the next step, and in which blocks of the cache.

Sequences wait in the order of their arrival, are *prefilled* (their known tokens computed, in chunks), then *run* (one
token a step). Invariants:
- admission never overtakes: a sequence that does not fit yet waits at the head, so none starves;
- when blocks run out, the youngest sequence is preempted and returns to the head of the queue. The oldest one always
  fits alone (the engine rejects what does not), so every step makes progress and there is no deadlock;
- a sequence whose tokens another one is computing in this step follows it or waits for it, so a shared prompt is
  computed once.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .request import Sequence


@dataclass(slots=True)
class Chunk:
    """Tokens `start` to `end` of one sequence, to be computed now.

    The last chunk of a sequence also names the sequences that draw their next token from it (`samples`), and the blocks
    to copy (from, to) so that each of them continues in its own.
    """

    sequence: Sequence
    start: int
    end: int
    samples: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


class Scheduler:
    """The queue and the running set, and the blocks and slots that they hold."""

    def __init__(
        self, pool: "BlockPool", *, max_batch: int, max_blocks: int, prefill_tokens: int, shares: bool
    ) -> None:
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.prefilling: dict[Sequence, None] = {}
        self.running: dict[Sequence, None] = {}
        self.tables = BlockTables(max_batch, max_blocks)
        self._free_slots = list(range(max_batch - 1, -1, -1))
        self._prefill_tokens, self._shares = prefill_tokens, shares

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.prefilling or self.running)

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def plan_prefill(self) -> list[Chunk]:
        """Return the chunks of this step: those of begun prompts first, then new ones in the order of arrival."""
        budget = self._prefill_tokens
        chunks: list[Chunk] = []
        for sequence in self.prefilling:
            budget -= self._add_chunk(chunks, sequence, budget)
        pending = {hashed for each in self.prefilling for hashed in each.chain[each.computed // self.pool.block_size :]}
        while self.waiting and self._free_slots:
            leader = self._leader_of(self.waiting[0])
            if leader is None and budget <= 0:
                break
            if not (self._follow(leader) if leader else self._admit(pending)):
                break
            if leader is None:
                budget -= self._add_chunk(chunks, next(reversed(self.prefilling)), budget)
        for chunk in chunks:
            self._complete(chunk)
        return chunks

    def finish_chunk(self, chunk: Chunk) -> None:
        """Record that a chunk is in the cache: its samples may run, and others may share its blocks."""
        sequence = chunk.sequence
        sequence.computed = chunk.end
        self.share_full_blocks(sequence)
        if not chunk.samples:
            return
        del self.prefilling[sequence]
        for each in chunk.samples:
            each.computed = chunk.end
            each.prefixes = list(sequence.prefixes)
            self.running[each] = None
        sequence.followers = []

    def lacking_block(self) -> list[Sequence]:
        """Return the running sequences whose newest token has no place for its keys yet."""
        size = self.pool.block_size
        return [
            each
            for each in self.running
            if len(each.blocks) * size < (count := len(each.tokens) + each.in_flight) and count < each.end
        ]

    def grow(self, lacking: list[Sequence]) -> None:
        """Give each of these sequences one more block; when none is left, the youngest of all are preempted."""
        if len(lacking) > self.pool.num_available:
            lacking = sorted(lacking, key=lambda each: each.order)
        for sequence in lacking:
            while sequence.slot is not None and not self.pool.num_available:
                self.preempt(self._youngest())
            if sequence.slot is not None:
                self._append_block(sequence, self.pool.allocate())

    def share_full_blocks(self, sequence: Sequence) -> None:
        """Let others find the blocks that this sequence has filled."""
        if not self._shares or sequence.is_stale:
            return
        prefixes = sequence.prefixes
        while (len(prefixes) + 1) * self.pool.block_size <= sequence.computed:
            parent = prefixes[-1] if prefixes else ROOT
            number = len(prefixes)
            prefixes.append(self.pool.register(sequence.blocks[number], parent, sequence.tokens, number))

    def preempt(self, sequence: Sequence) -> None:
        """Take away a sequence's blocks; it waits at the head of the queue and computes its tokens again later."""
        self.remove(sequence)
        self.waiting.appendleft(sequence)

    def preempt_all(self) -> None:
        held = [*self.running, *self.prefilling]
        for sequence in sorted(held, key=lambda each: each.order, reverse=True):
            if sequence.slot is not None:
                self.preempt(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, wherever it is; its followers wait again."""
        if sequence.slot is None:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            return
        self.running.pop(sequence, None)
        self.prefilling.pop(sequence, None)
        for leader in self.prefilling:
            if sequence in leader.followers:
                leader.followers.remove(sequence)
        followers, sequence.followers = sequence.followers, []
        self._free(sequence)
        for follower in sorted(followers, key=lambda each: each.order, reverse=True):
            self._free(follower)
            self.waiting.appendleft(follower)

    def _free(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self.pool.release(sequence.blocks)
        self._free_slots.append(sequence.slot)
        sequence.slot, sequence.row = None, -1
        sequence.blocks, sequence.prefixes, sequence.chain = [], [], []
        sequence.computed = 0
        sequence.is_stale = False

    def _leader_of(self, sequence: Sequence) -> Sequence | None:
        """Return a sequence in prefill with exactly the same tokens, computed with the same weights."""
        if not self._shares or not sequence.is_fresh:
            return None
        for leader in self.prefilling:
            is_like = leader.is_fresh and not leader.is_stale and leader.request.key == sequence.request.key
            if is_like and leader.tokens == sequence.tokens:
                return leader
        return None

    def _follow(self, leader: Sequence) -> bool:
        """Let the head of the queue share all full blocks of its leader; its last, partly filled block is its own."""
        num_full = len(leader.tokens) // self.pool.block_size
        has_tail = num_full < len(leader.blocks)
        if has_tail and self.pool.num_available <= self._reserve():
            return False
        sequence = self._take_slot(self.waiting.popleft())
        for block in leader.blocks[:num_full]:
            self.pool.hold(block)
            self._append_block(sequence, block)
        if has_tail:
            self._append_block(sequence, self.pool.allocate())
        sequence.cached_tokens = len(sequence.tokens) if sequence.cached_tokens is None else sequence.cached_tokens
        leader.followers.append(sequence)
        return True

    def _admit(self, pending: set[int]) -> bool:
        """Admit the head of the queue to prefill, if there is room and no other sequence is computing its prefix."""
        sequence = self.waiting[0]
        pool, num_tokens = self.pool, len(sequence.tokens)
        known, prefixes, chain = self._known_prefix(sequence)
        if len(known) < len(chain) and chain[len(known)] in pending:
            return False
        for block in known:
            pool.hold(block)
        if pool.needed(num_tokens) - len(known) + self._reserve() > pool.num_available:
            pool.release(known)
            return False
        self._take_slot(self.waiting.popleft())
        for block in known:
            self._append_block(sequence, block)
        for _ in range(pool.needed(num_tokens) - len(known)):
            self._append_block(sequence, pool.allocate())
        sequence.prefixes, sequence.chain = prefixes, chain
        sequence.computed = len(known) * pool.block_size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        pending.update(chain[len(known) :])
        self.prefilling[sequence] = None
        return True

    def _known_prefix(self, sequence: Sequence) -> tuple[list[int], list[int], list[int]]:
        if not self._shares:
            return [], [], []
        # At least one token is computed: the first sample is drawn from its logits.
        limit = (len(sequence.tokens) - 1) // self.pool.block_size
        blocks, prefixes = self.pool.find(sequence.tokens, limit=limit)
        return blocks, prefixes, self.pool.chain(sequence.tokens, range(limit))

    def _reserve(self) -> int:
        """Return how many blocks to leave to running sequences, so that admission does not cause a preemption."""
        return len(self.running)

    def _take_slot(self, sequence: Sequence) -> Sequence:
        sequence.slot = self._free_slots.pop()
        return sequence

    def _append_block(self, sequence: Sequence, block: int) -> None:
        assert sequence.slot is not None
        self.tables.put(sequence.slot, len(sequence.blocks), block)
        sequence.blocks.append(block)

    def _youngest(self) -> Sequence:
        held = [*self.running, *self.prefilling, *(each for leader in self.prefilling for each in leader.followers)]
        return max(held, key=lambda each: each.order)

    def _add_chunk(self, chunks: list[Chunk], sequence: Sequence, budget: int) -> int:
        size = min(len(sequence.tokens) - sequence.computed, budget)
        if size > 0:
            chunks.append(Chunk(sequence, sequence.computed, sequence.computed + size))
        return max(size, 0)

    def _complete(self, chunk: Chunk) -> None:
        """Set the samples of a sequence's last chunk, and the copies of its partly filled block."""
        sequence = chunk.sequence
        if chunk.end < len(sequence.tokens):
            return
        chunk.samples = [sequence, *sequence.followers]
        if len(sequence.tokens) % self.pool.block_size:
            chunk.copies = [(sequence.blocks[-1], each.blocks[-1]) for each in sequence.followers]


Key = tuple[int, tuple[int, ...]]
ROOT = 0  # the parent of a first block


class BlockPool:
    """Which blocks of the cache are free, which sequences hold the others, and which prefix of tokens each one keeps.

    A block holds the keys and values of `block_size` adjacent tokens. A full block is *known* by its tokens and by the
    block before it, so that a later request with the same beginning finds it again. Invariants:
    - a block is in exactly one of three states: free, held (one or more references), idle (known, but not held);
    - idle blocks are evicted in the order in which they were last released. A sequence releases its last block first,
      so the end of a prefix is always evicted before its beginning;
    - block 0 is never handed out: rows that only pad a batch write there.

    Nothing is locked: the engine calls it from one thread at a time.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free = list(range(num_blocks, 0, -1))
        self._references = [0] * (num_blocks + 1)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._known: dict[Key, tuple[int, int]] = {}  # key -> (block, number of its prefix)
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
        """Return how many blocks hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self) -> int:
        """Return a block with one holder; if none is free, an idle one is evicted."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        self._references[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Add a holder to a block that is held or idle."""
        self._idle.pop(block, None)
        self._references[block] += 1

    def release(self, blocks: Many[int]) -> None:
        """Remove one holder from each of these blocks, given in the order of their tokens."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._key_of:
                self._idle[block] = None
            else:
                self._free.append(block)

    def find(self, tokens: Many[int], *, limit: int) -> tuple[list[int], list[int]]:
        """Return the known blocks of the beginning of `tokens` (at most `limit`), and the numbers of their prefixes."""
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

    def register(self, block: int, parent: int, tokens: Many[int], number: int) -> int:
        """Make a full block known by its prefix, unless another block is already; return the number of the prefix."""
        key = (parent, self._tokens_of(tokens, number))
        found = self._known.get(key)
        if found is not None:
            return found[1]
        self._last_prefix += 1
        self._known[key] = (block, self._last_prefix)
        self._key_of[block] = key
        return self._last_prefix

    def forget_all(self) -> None:
        """Make all blocks unknown; held ones stay with their holders."""
        self._free.extend(self._idle)
        self._idle.clear()
        self._known.clear()
        self._key_of.clear()

    def chain(self, tokens: Many[int], numbers: Iterable[int]) -> list[int]:
        """Return a hash for each of these blocks over all tokens up to its end; `numbers` count up from 0."""
        hashes: list[int] = []
        last = 0
        for number in numbers:
            last = hash((last, self._tokens_of(tokens, number)))
            hashes.append(last)
        return hashes

    def _tokens_of(self, tokens: Many[int], number: int) -> tuple[int, ...]:
        return tuple(tokens[number * self.block_size : (number + 1) * self.block_size])

    def _forget(self, block: int) -> None:
        del self._known[self._key_of.pop(block)]


class BlockTables:
    """The blocks of every slot in the order of their tokens.

    `array` is (slots, blocks of the longest text); entries after a sequence's last block are undefined.
    """

    def __init__(self, num_slots: int, max_blocks: int) -> None:
        self.array: npt.NDArray[np.int32] = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self._changed: dict[int, int] = {}

    def put(self, slot: int, number: int, block: int) -> None:
        """Set block `number` of the slot's text; the numbers of a text come in order."""
        self.array[slot, number] = block
        self._changed[slot] = number

    def take_changes(self) -> tuple[list[int], int]:
        """Return the slots that changed since the last call, and how many blocks the longest of them has."""
        changed, self._changed = self._changed, {}
        return list(changed), max(changed.values(), default=-1) + 1
