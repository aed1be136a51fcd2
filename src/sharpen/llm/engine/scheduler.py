"""Which sequences are computed in the next step, and in which blocks.

Sequences wait in the order of their arrival, are *prefilled* (their known tokens computed, in chunks), then *run* (one
token a step). Invariants:
- admission never overtakes: a sequence that does not fit yet waits at the head, so none starves;
- when blocks run out, the youngest sequence gives up its own and goes back to the head of the queue. The oldest one
  always fits alone (the engine refuses what does not), so every step brings something to an end: no deadlock;
- a sequence whose tokens are being computed by another one in this step follows it or waits for it, so a prompt that
  many share is computed once.
"""

from collections import deque
from dataclasses import dataclass, field

from .block_tables import BlockTables
from .blocks import ROOT, BlockPool
from .sequence import Sequence


@dataclass(slots=True)
class Chunk:
    """Tokens `start` to `end` of one sequence, to be computed now.

    With the last of its chunks come the sequences that draw their next token from it, and the blocks to be copied
    (from, to) so that each of them can go on in its own.
    """

    sequence: Sequence
    start: int
    end: int
    samples: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


class Scheduler:
    """The queue and the running set."""

    def __init__(self, pool: BlockPool, *, max_batch: int, max_blocks: int, prefill_tokens: int, shares: bool) -> None:
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
        """The chunks of this step: those already begun first, then new ones in the order of arrival."""
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
            self._close(chunk)
        return chunks

    def finish_chunk(self, chunk: Chunk) -> None:
        """The chunk is in the cache: its sequences may run, and others may share its blocks."""
        sequence = chunk.sequence
        sequence.computed = chunk.end
        self.learn(sequence)
        if not chunk.samples:
            return
        del self.prefilling[sequence]
        for each in chunk.samples:
            each.computed = chunk.end
            each.prefixes = list(sequence.prefixes)
            self.running[each] = None
        sequence.followers = []

    def short(self) -> list[Sequence]:
        """The running sequences whose newest token has no place for its keys yet."""
        size = self.pool.block_size
        return [
            each
            for each in self.running
            if len(each.blocks) * size < (count := len(each.tokens) + each.in_flight) and count < each.end
        ]

    def grow(self, short: list[Sequence]) -> None:
        """Give these sequences room for their next token; the youngest of all step back when there is none."""
        if len(short) > self.pool.num_available:
            short = sorted(short, key=lambda each: each.order)
        for sequence in short:
            while sequence.slot is not None and not self.pool.num_available:
                self.preempt(self._youngest())
            if sequence.slot is not None:
                self._append_block(sequence, self.pool.allocate())

    def learn(self, sequence: Sequence) -> None:
        """Make the blocks that this sequence has filled known to others."""
        if not self._shares or sequence.is_stale:
            return
        prefixes = sequence.prefixes
        while (len(prefixes) + 1) * self.pool.block_size <= sequence.computed:
            parent = prefixes[-1] if prefixes else ROOT
            number = len(prefixes)
            prefixes.append(self.pool.learn(sequence.blocks[number], parent, sequence.tokens, number))

    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's blocks; it computes its tokens again when its turn comes."""
        self.remove(sequence)
        self.waiting.appendleft(sequence)

    def preempt_all(self) -> None:
        held = [*self.running, *self.prefilling]
        for sequence in sorted(held, key=lambda each: each.order, reverse=True):
            if sequence.slot is not None:
                self.preempt(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its followers wait again."""
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
        self._give_back(sequence)
        for follower in sorted(followers, key=lambda each: each.order, reverse=True):
            self._give_back(follower)
            self.waiting.appendleft(follower)

    def _give_back(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self.pool.release(sequence.blocks)
        self._free_slots.append(sequence.slot)
        sequence.slot, sequence.row = None, -1
        sequence.blocks, sequence.prefixes, sequence.chain = [], [], []
        sequence.computed = 0
        sequence.is_stale = False

    def _leader_of(self, sequence: Sequence) -> Sequence | None:
        """A sequence in prefill with exactly the same tokens, computed under the same weights."""
        if not self._shares or not sequence.is_fresh:
            return None
        for leader in self.prefilling:
            is_like = leader.is_fresh and not leader.is_stale and leader.request.key == sequence.request.key
            if is_like and leader.tokens == sequence.tokens:
                return leader
        return None

    def _follow(self, leader: Sequence) -> bool:
        """Let the head of the queue share all full blocks of its leader; the last, begun block is its own."""
        num_full = len(leader.tokens) // self.pool.block_size
        has_tail = num_full < len(leader.blocks)
        if has_tail and self.pool.num_available <= self._reserve():
            return False
        sequence = self._seat(self.waiting.popleft())
        for block in leader.blocks[:num_full]:
            self.pool.hold(block)
            self._append_block(sequence, block)
        if has_tail:
            self._append_block(sequence, self.pool.allocate())
        sequence.cached_tokens = len(sequence.tokens) if sequence.cached_tokens is None else sequence.cached_tokens
        leader.followers.append(sequence)
        return True

    def _admit(self, pending: set[int]) -> bool:
        """Seat the head of the queue for a prefill of its own, if there is room and nobody computes its prefix."""
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
        self._seat(self.waiting.popleft())
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
        # At least one token is computed: its logits are what the first sample is drawn from.
        limit = (len(sequence.tokens) - 1) // self.pool.block_size
        blocks, prefixes = self.pool.find(sequence.tokens, limit=limit)
        return blocks, prefixes, self.pool.chain(sequence.tokens, range(limit))

    def _reserve(self) -> int:
        """Blocks left to the running ones, so that admitting one does not at once push another out."""
        return len(self.running)

    def _seat(self, sequence: Sequence) -> Sequence:
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

    def _close(self, chunk: Chunk) -> None:
        """Name the samples of a chunk that ends its sequence's tokens, and the copies of its begun block."""
        sequence = chunk.sequence
        if chunk.end < len(sequence.tokens):
            return
        chunk.samples = [sequence, *sequence.followers]
        if len(sequence.tokens) % self.pool.block_size:
            chunk.copies = [(sequence.blocks[-1], each.blocks[-1]) for each in sequence.followers]
