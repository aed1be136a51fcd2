"""The steps of the engine: admit, prefill, draw one token for every running sequence, hand out what is ready.

Called by one thread at a time. Where steps overlap, a step is launched before the one before was read, prefills and
all: the device does not wait for the host. A sequence that ended meanwhile is then computed once too often; its surplus
token is dropped, and its blocks are written by nobody before that step is over, because the device works in order.

An error ends the request that it belongs to, and no other. Where a step of several requests fails as a whole, each of
them is computed alone once: those that can go on lose nothing, because their tokens and seeds are kept.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Iterable

from ...errors import in_words
from .blocks import BlockPool
from .errors import EngineError
from .outputs import FinishReason, Generation, Token, TopLogprobs
from .request import Request
from .rows import Drawn, Ticket
from .runners import Runner
from .scheduler import Scheduler
from .sequence import Sequence
from .sizes import Sizes

log = logging.getLogger(__name__)

_NO_NUMBER = float("nan")
_NOT_FINITE = (
    "the model's logits after {place} tokens are not numbers (weights version {version}): its weights have diverged, "
    "or its dtype is too small for it; go back to an earlier checkpoint, or use float32 or bfloat16"
)


class Stepper:
    """Everything that a step touches. `guard` is held while tokens are handed to listeners."""

    def __init__(
        self, runner: Runner, sizes: Sizes, *, version: int, overlaps: bool, guard: threading.Condition
    ) -> None:
        self.pool = BlockPool(sizes.num_blocks, sizes.block_size)
        self.scheduler = Scheduler(
            self.pool,
            max_batch=sizes.max_batch,
            max_blocks=sizes.max_blocks,
            prefill_tokens=sizes.prefill_tokens,
            shares=runner.shares_prefixes,
        )
        self.version = version
        self._runner, self._overlaps, self._guard = runner, overlaps and runner.shares_prefixes, guard
        self._in_flight: list[Ticket] = []
        self._suspects: deque[Request] = deque()  # of a step that failed, not yet computed alone

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle and not self._in_flight

    @property
    def sequences(self) -> list[Sequence]:
        """All that are not finished."""
        scheduler = self.scheduler
        followers = [each for leader in scheduler.prefilling for each in leader.followers]
        return [*scheduler.running, *scheduler.prefilling, *followers, *scheduler.waiting]

    def add(self, request: Request) -> None:
        for sequence in request.sequences:
            self.scheduler.add(sequence)

    def cancel(self, request: Request) -> None:
        """End what is left of a request; it keeps the tokens it has."""
        if request.future.done() and not request.future.cancelled():
            return
        left = [each for each in request.sequences if each.finish_reason is None]
        try:
            with self._guard:
                events = [self._ended(each, "cancelled") for each in left]
                _tell(request, events)
        except Exception as error:  # noqa: BLE001 - the request has it
            self._give_up(request, _failure(error))
        else:
            self._resolve([request] if left else [])

    def advance(self) -> None:
        """Compute the next tokens: of all requests, or of one that may have broken a step."""
        if self._suspects:
            self._advance_alone(self._suspects.popleft())
        else:
            self._step()

    def _step(self) -> None:
        """Launch one step, then read the one before."""
        launched = self._prefill()
        short = self.scheduler.short()
        if len(short) > self.pool.num_available:
            # Somebody has to step back, with all its tokens.
            self._in_flight += launched
            self.settle()
            launched, short = [], self.scheduler.short()
        launched += self._decode(short)
        before, self._in_flight = self._in_flight, launched
        self._collect(before)
        if not self._overlaps:
            self.settle()

    def settle(self) -> None:
        """Read what is in flight."""
        tickets, self._in_flight = self._in_flight, []
        self._collect(tickets)

    def swap(self, version: int, *, recompute: bool) -> None:
        """The weights are others now. Nothing may be in flight."""
        self.pool.forget_all()
        if recompute:
            self._step_back()
        for sequence in self.sequences:
            sequence.is_stale = sequence.slot is not None
        self.version = version

    def fail(self, error: Exception) -> None:
        """A step failed as a whole: find the request at fault among those that took part (all, if none did).

        If each of them has worked alone before, none of them can be told from the others: all end.
        """
        held = [each for each in self.sequences if each.slot is not None] or self.sequences
        requests = list(dict.fromkeys(each.request for each in held))
        if not requests:
            raise error
        self._step_back()
        self.pool.forget_all()  # nothing in the cache can be trusted
        suspects = [each for each in requests if not each.has_run_alone]
        if suspects and len(requests) > 1:
            log.warning(
                "a step of the engine failed (%s); %d of its %d requests are computed alone to find the one at fault",
                in_words(error),
                len(suspects),
                len(requests),
            )
            self._suspects.extend(suspects)
            return
        log.error("a step of the engine failed: %s", in_words(error))
        for request in requests:
            self._give_up(request, _failure(error))

    def _advance_alone(self, request: Request) -> None:
        """Compute one more token of each sample of a request, with no other request in the batch."""
        scheduler = self.scheduler
        request.has_run_alone = True
        lengths = {each: len(each.tokens) for each in request.sequences if each.finish_reason is None}
        others = [each for each in scheduler.waiting if each not in lengths]
        scheduler.waiting = deque(lengths)
        try:
            while any(len(each.tokens) == length and each.finish_reason is None for each, length in lengths.items()):
                self._step()
                self.settle()
        except Exception as error:  # noqa: BLE001 - the request has it
            log.error("a request failed in the engine: %s", in_words(error))
            self._step_back()
            self.pool.forget_all()
            self._give_up(request, _failure(error))
        finally:
            self._step_back()
            scheduler.waiting = deque(sorted([*scheduler.waiting, *others], key=lambda each: each.order))

    def _step_back(self) -> None:
        """Everything waits, as it was before it was computed; only what was read is kept."""
        self._in_flight = []
        held = [each for each in self.sequences if each.slot is not None]
        self.scheduler.preempt_all()
        for sequence in held:
            sequence.in_flight = 0
        self._release(held)

    def _give_up(self, request: Request, failure: EngineError) -> None:
        """End a request with an error."""
        for sequence in request.sequences:
            sequence.finish_reason = sequence.finish_reason or "cancelled"
            self._remove(sequence)
        if request.future.set_running_or_notify_cancel():
            request.future.set_exception(failure)

    def _prefill(self) -> list[Ticket]:
        chunks = self.scheduler.plan_prefill()
        if not chunks:
            return []
        ticket = self._runner.prefill(chunks, self.scheduler.tables)
        for chunk in chunks:
            self.scheduler.finish_chunk(chunk)
        if ticket is None:
            return []
        for sequence in ticket.sequences:
            sequence.in_flight += 1
        if self._overlaps:
            return [ticket]
        self._collect([ticket])
        return []

    def _decode(self, short: list[Sequence]) -> list[Ticket]:
        is_tight = len(short) > self.pool.num_available
        held = [each for each in self.sequences if each.slot is not None] if is_tight else []
        self.scheduler.grow(short)
        self._release(each for each in held if each.slot is None)
        running = [each for each in self.scheduler.running if len(each.tokens) + each.in_flight < each.end]
        return [self._runner.decode(running, self.scheduler.tables)] if running else []

    def _collect(self, tickets: list[Ticket]) -> None:
        """Read these steps, in their order."""
        for ticket in tickets:
            drawn = ticket.read()
            if drawn.is_broken:
                self._give_up_broken(ticket, drawn)
            events: dict[Request, list[Token]] = {}
            failures: dict[Request, Exception] = {}
            with self._guard:
                finished = self._append_all(ticket.sequences, drawn, events, failures)
                for request, tokens in events.items():
                    try:
                        _tell(request, tokens)
                    except Exception as error:  # noqa: BLE001 - the request has it
                        failures.setdefault(request, error)
            for request, cause in failures.items():
                self._give_up(request, _failure(cause))
            self._resolve([request for request in finished if request not in failures])

    def _append_all(
        self,
        sequences: list[Sequence],
        drawn: Drawn,
        events: dict[Request, list[Token]],
        failures: dict[Request, Exception],
    ) -> list[Request]:
        """Give each sequence its token; return the requests of those that ended."""
        finished: list[Request] = []
        for row, sequence in enumerate(sequences):
            if sequence.in_flight:
                sequence.in_flight -= 1
            if sequence.finish_reason is not None:
                continue
            numbers = drawn.ids[row], drawn.logprobs[row], drawn.model_logprobs[row]
            try:
                if sequence.is_watched:
                    self._append_watched(sequence, *numbers, drawn.tops[row], events)
                else:
                    sequence.append(*numbers, self.version, ())
            except Exception as error:  # noqa: BLE001 - the request has it
                failures.setdefault(sequence.request, error)
                continue
            self._after_append(sequence)
            if sequence.finish_reason is not None:
                finished.append(sequence.request)
        return finished

    def _append_watched(
        self,
        sequence: Sequence,
        token_id: int,
        logprob: float,
        model_logprob: float,
        top: TopLogprobs,
        events: dict[Request, list[Token]],
    ) -> None:
        top = top[: sequence.params.logprobs]
        text = sequence.append(token_id, logprob, model_logprob, self.version, top)
        if sequence.request.listeners:
            reason = sequence.finish_reason
            event = Token(sequence.index, token_id, logprob, model_logprob, self.version, top, text, reason)
            events.setdefault(sequence.request, []).append(event)

    def _after_append(self, sequence: Sequence) -> None:
        sequence.computed = computed = len(sequence.tokens) - 1
        if computed % self.pool.block_size == 0:
            self.scheduler.learn(sequence)
        if sequence.finish_reason is not None:
            self._remove(sequence)

    def _give_up_broken(self, ticket: Ticket, drawn: Drawn) -> None:
        """End the requests whose logits were no numbers."""
        for row, sequence in enumerate(ticket.sequences):
            if sequence.finish_reason is None and math.isnan(drawn.model_logprobs[row]):
                words = _NOT_FINITE.format(place=len(sequence.tokens), version=self.version)
                self._give_up(sequence.request, EngineError(words))

    def _ended(self, sequence: Sequence, reason: FinishReason) -> Token:
        sequence.finish_reason = reason
        self._remove(sequence)
        text = sequence.text.finish() if sequence.text else ""
        return Token(sequence.index, None, _NO_NUMBER, _NO_NUMBER, self.version, (), text, reason)

    def _remove(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self._runner.release(sequence)

    def _release(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._runner.release(sequence)

    def _resolve(self, requests: list[Request]) -> None:
        """Hand out the results of requests whose samples are all finished."""
        for request in dict.fromkeys(requests):
            if any(each.finish_reason is None for each in request.sequences):
                continue
            if request.future.set_running_or_notify_cancel():
                cached = request.sequences[0].cached_tokens or 0
                samples = [each.sample() for each in request.sequences]
                request.future.set_result(Generation(request.prompt_ids, samples, cached))


def _failure(error: Exception) -> EngineError:
    failure = EngineError(f"the engine's step failed ({in_words(error)})")
    failure.__cause__ = error
    return failure


def _tell(request: Request, tokens: list[Token]) -> None:
    for listener in list(request.listeners):
        listener(tokens)
