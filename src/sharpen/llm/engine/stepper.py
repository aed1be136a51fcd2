"""The steps of the engine: admit, prefill, draw one token for every running sequence, deliver what is ready.

Called by one thread at a time. Where steps overlap, a step is launched before the previous one was read, including its
prefill, so the device does not wait for the host. A sequence that ended in between is then computed once too often; its
surplus token is dropped, and its blocks are not reused before that step is over, because the device works in order.

An error ends the request that caused it, and no other. If a step of several requests fails as a whole, each of them is
computed alone once: those that work lose nothing, because their tokens and seeds are kept.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Iterable

from ...errors import describe
from .batch import LaunchedStep, StepResult
from .model_runner import Runner
from .request import EngineError, FinishReason, Generation, Request, Sequence, Token, TopLogprobs
from .scheduler import BlockPool, Scheduler
from .sizes import Sizes

log = logging.getLogger(__name__)

_NO_NUMBER = float("nan")
_NOT_FINITE = (
    "the model's logits after {place} tokens are NaN (weights version {version}): its weights have diverged, or its "
    "dtype is too small; return to an earlier checkpoint, or use float32 or bfloat16"
)


class Stepper:
    """Everything that a step uses. `guard` is held while tokens are passed to listeners."""

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
        self._in_flight: list[LaunchedStep] = []
        self._suspects: deque[Request] = deque()  # requests of a failed step, not yet computed alone

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle and not self._in_flight

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences that are not finished."""
        scheduler = self.scheduler
        followers = [each for leader in scheduler.prefilling for each in leader.followers]
        return [*scheduler.running, *scheduler.prefilling, *followers, *scheduler.waiting]

    def add(self, request: Request) -> None:
        for sequence in request.sequences:
            self.scheduler.add(sequence)

    def cancel(self, request: Request) -> None:
        """End the unfinished samples of a request; it keeps the tokens it has."""
        if request.future.done() and not request.future.cancelled():
            return
        left = [each for each in request.sequences if each.finish_reason is None]
        try:
            with self._guard:
                _notify(request, [self._end(each, "cancelled") for each in left])
        except Exception as error:  # noqa: BLE001 - raised by the result of the request
            self._fail_request(request, _failure(error))
        else:
            self._resolve([request] if left else [])

    def advance(self) -> None:
        """Compute the next tokens of all requests, or of one that may have made a step fail."""
        if self._suspects:
            self._advance_alone(self._suspects.popleft())
        else:
            self._step()

    def _step(self) -> None:
        """Launch one step, then read the previous one."""
        launched = self._prefill()
        lacking = self.scheduler.lacking_block()
        if len(lacking) > self.pool.num_available:
            # A sequence has to be preempted, and needs all its tokens for that.
            self._in_flight += launched
            self.read_in_flight()
            launched, lacking = [], self.scheduler.lacking_block()
        launched += self._decode(lacking)
        before, self._in_flight = self._in_flight, launched
        self._collect(before)
        if not self._overlaps:
            self.read_in_flight()

    def read_in_flight(self) -> None:
        """Read all steps that were launched and not read yet."""
        steps, self._in_flight = self._in_flight, []
        self._collect(steps)

    def switch_weights(self, version: int, *, recompute: bool) -> None:
        """Continue with changed weights under a new version. Nothing may be in flight."""
        self.pool.forget_all()
        if recompute:
            self._preempt_all()
        for sequence in self.sequences:
            sequence.is_stale = sequence.slot is not None
        self.version = version

    def fail(self, error: Exception) -> None:
        """Handle a step that failed as a whole: find the request at fault among those in it (all, if none was).

        If each of them has worked alone before, the one at fault cannot be identified, and all of them end.
        """
        held = [each for each in self.sequences if each.slot is not None] or self.sequences
        requests = list(dict.fromkeys(each.request for each in held))
        if not requests:
            raise error
        self._preempt_all()
        self.pool.forget_all()  # nothing in the cache can be trusted
        suspects = [each for each in requests if not each.has_run_alone]
        if suspects and len(requests) > 1:
            log.warning(
                "an engine step failed (%s); computing %d of its %d requests one by one to find the one at fault",
                describe(error),
                len(suspects),
                len(requests),
            )
            self._suspects.extend(suspects)
            return
        log.error("an engine step failed: %s", describe(error))
        for request in requests:
            self._fail_request(request, _failure(error))

    def _advance_alone(self, request: Request) -> None:
        """Compute one more token for each sample of a request, with no other request in the batch."""
        scheduler = self.scheduler
        request.has_run_alone = True
        lengths = {each: len(each.tokens) for each in request.sequences if each.finish_reason is None}
        others = [each for each in scheduler.waiting if each not in lengths]
        scheduler.waiting = deque(lengths)
        try:
            while any(len(each.tokens) == length and each.finish_reason is None for each, length in lengths.items()):
                self._step()
                self.read_in_flight()
        except Exception as error:  # noqa: BLE001 - raised by the result of the request
            log.error("a request failed in the engine: %s", describe(error))
            self._preempt_all()
            self.pool.forget_all()
            self._fail_request(request, _failure(error))
        finally:
            self._preempt_all()
            scheduler.waiting = deque(sorted([*scheduler.waiting, *others], key=lambda each: each.order))

    def _preempt_all(self) -> None:
        """Return everything to the queue; only tokens that were read are kept."""
        self._in_flight = []
        held = [each for each in self.sequences if each.slot is not None]
        self.scheduler.preempt_all()
        for sequence in held:
            sequence.in_flight = 0
        self._release(held)

    def _fail_request(self, request: Request, failure: EngineError) -> None:
        """End a request with an error."""
        for sequence in request.sequences:
            sequence.finish_reason = sequence.finish_reason or "cancelled"
            self._remove(sequence)
        if request.future.set_running_or_notify_cancel():
            request.future.set_exception(failure)

    def _prefill(self) -> list[LaunchedStep]:
        chunks = self.scheduler.plan_prefill()
        if not chunks:
            return []
        step = self._runner.prefill(chunks, self.scheduler.tables)
        for chunk in chunks:
            self.scheduler.finish_chunk(chunk)
        if step is None:
            return []
        for sequence in step.sequences:
            sequence.in_flight += 1
        if self._overlaps:
            return [step]
        self._collect([step])
        return []

    def _decode(self, lacking: list[Sequence]) -> list[LaunchedStep]:
        is_tight = len(lacking) > self.pool.num_available
        held = [each for each in self.sequences if each.slot is not None] if is_tight else []
        self.scheduler.grow(lacking)
        self._release(each for each in held if each.slot is None)
        running = [each for each in self.scheduler.running if len(each.tokens) + each.in_flight < each.end]
        return [self._runner.decode(running, self.scheduler.tables)] if running else []

    def _collect(self, steps: list[LaunchedStep]) -> None:
        """Read these steps in order."""
        for step in steps:
            drawn = step.read()
            if drawn.has_nan:
                self._fail_not_finite(step, drawn)
            events: dict[Request, list[Token]] = {}
            failures: dict[Request, Exception] = {}
            with self._guard:
                finished = self._append_all(step.sequences, drawn, events, failures)
                for request, tokens in events.items():
                    try:
                        _notify(request, tokens)
                    except Exception as error:  # noqa: BLE001 - raised by the result of the request
                        failures.setdefault(request, error)
            for request, cause in failures.items():
                self._fail_request(request, _failure(cause))
            self._resolve([request for request in finished if request not in failures])

    def _append_all(
        self,
        sequences: list[Sequence],
        drawn: StepResult,
        events: dict[Request, list[Token]],
        failures: dict[Request, Exception],
    ) -> list[Request]:
        """Append each sequence's token; return the requests of those that ended."""
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
            except Exception as error:  # noqa: BLE001 - raised by the result of the request
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
            self.scheduler.share_full_blocks(sequence)
        if sequence.finish_reason is not None:
            self._remove(sequence)

    def _fail_not_finite(self, step: LaunchedStep, drawn: StepResult) -> None:
        """End the requests whose logits were NaN."""
        for row, sequence in enumerate(step.sequences):
            if sequence.finish_reason is None and math.isnan(drawn.model_logprobs[row]):
                message = _NOT_FINITE.format(place=len(sequence.tokens), version=self.version)
                self._fail_request(sequence.request, EngineError(message))

    def _end(self, sequence: Sequence, reason: FinishReason) -> Token:
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
        """Set the results of requests whose samples are all finished."""
        for request in dict.fromkeys(requests):
            if any(each.finish_reason is None for each in request.sequences):
                continue
            if request.future.set_running_or_notify_cancel():
                cached = request.sequences[0].cached_tokens or 0
                samples = [each.sample() for each in request.sequences]
                request.future.set_result(Generation(request.prompt_ids, samples, cached))


def _failure(error: Exception) -> EngineError:
    failure = EngineError(f"the engine step failed: {describe(error)}")
    failure.__cause__ = error
    return failure


def _notify(request: Request, tokens: list[Token]) -> None:
    for listener in list(request.listeners):
        listener(tokens)
