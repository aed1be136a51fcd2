"""The engine: samples many requests at once from one model, on the CPU or one GPU.

Steps are taken by a background thread (`start`), by `step`, or by a caller that waits for a result. One lock is held
during a step; changing the weights takes the same lock, so no token is drawn from half-changed weights.

A request passes through these files: `request.py` (its handle and the state of its samples), `stepper.py` (a step),
`scheduler.py` (what the step computes, in which blocks), `model_runner.py` or on a GPU `fused_runner.py` (the forward
pass), `batch.py` and `sampler.py` (drawing the next tokens).
"""

import itertools
import logging
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence as Many
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidInputError, describe
from .model_runner import build_runner
from .request import EngineError, Generation, Listener, Request, SamplingParams, Sequence, Token
from .sampler import sample_seed
from .sizes import Sizes
from .stepper import Stepper
from .text import TextDecoder, TextStream
from .weights import Weights

log = logging.getLogger(__name__)


class Engine:
    """Samples from a transformers model.

    Args:
        model: A transformers causal language model, or a PEFT model around one.
        tokenizer: Needed only for stop strings and text.
        max_batch: How many sequences run at once.
        max_tokens: The size of the cache in tokens, which all sequences share.
        block_size: Tokens in one block of the cache.
        prefill_tokens: The most prompt tokens that one step computes.
        device: Another device than the model's makes a copy of the weights; otherwise they are shared.
        dtype: Another dtype than the model's makes a copy of the weights; otherwise they are shared.
        seed: The seed from which requests without one get theirs.
        weights_version: The version that the first tokens carry.
        overlap: Launch a step before the previous one was read (None: on a GPU).
        static_shapes: Round decode steps up to a few shapes in fixed tensors (None: on a GPU with Triton). Weights with
            the same input are then joined in memory; they remain the model's own parameters, which a trainer changes
            in place.
        use_graphs: Record steps of fixed shapes as CUDA graphs.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: TextDecoder | None = None,
        *,
        max_batch: int | None = None,
        max_tokens: int | None = None,
        block_size: int = 16,
        prefill_tokens: int | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        seed: int | None = None,
        weights_version: int = 0,
        overlap: bool | None = None,
        static_shapes: bool | None = None,
        use_graphs: bool = True,
    ) -> None:
        self._weights = Weights(model, device=None if device is None else torch.device(device), dtype=dtype)
        self._tokenizer = tokenizer
        self.sizes = Sizes.of(
            self._weights.model,
            max_batch=max_batch,
            max_tokens=max_tokens,
            block_size=block_size,
            prefill_tokens=prefill_tokens,
        )
        self._lock = threading.RLock()  # held during a step, and while the weights change
        self._state = threading.Condition()  # guards the queues and the states below
        with torch.no_grad(), self.sizes.device_context():
            self._runner = build_runner(
                self._weights.model,
                self.sizes,
                static_shapes=static_shapes,
                use_graphs=use_graphs,
            )
            self._weights.have_moved()  # the runner may have joined some in memory
        self._stepper = Stepper(
            self._runner,
            self.sizes,
            version=weights_version,
            overlaps=self.sizes.is_cuda if overlap is None else overlap,
            guard=self._state,
        )
        self._random = random.Random(seed)
        self._arrivals = itertools.count()
        self._new: deque[Request] = deque()
        self._cancelled: deque[Request] = deque()
        self._num_holding = 0
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    @property
    def weights_version(self) -> int:
        return self._stepper.version

    @property
    def is_started(self) -> bool:
        """Whether a background thread takes the steps."""
        return self._thread is not None

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return self.sizes.max_batch - self._stepper.scheduler.num_free_slots

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        with self._state:
            return len(self._stepper.scheduler.waiting) + sum(request.params.n for request in self._new)

    @property
    def num_held_tokens(self) -> int:
        """Tokens of the cache that running sequences hold, in whole blocks."""
        return self._stepper.pool.num_held * self.sizes.block_size

    def submit(self, prompt_ids: Many[int], params: SamplingParams | None = None) -> Request:
        """Queue a request and return at once. A request that could never run is rejected here."""
        params = params or SamplingParams()
        self._check_params(params)
        request = Request(self, self.sizes.checked_prompt(prompt_ids), params)
        limit = self.sizes.checked_limit(len(request.prompt_ids), params.max_new_tokens)
        with self._state:
            if self._is_stopping:
                raise EngineError("the engine is stopping: call start() before submitting new requests")
            request.sequences = self._sequences_of(request, limit)
            self._new.append(request)
            self._state.notify_all()
        return request

    async def generate(self, prompt_ids: Many[int], params: SamplingParams | None = None) -> Generation:
        """Return the samples of one request, in an event loop; needs the background thread."""
        self._check_started()
        return await self.submit(prompt_ids, params)

    async def stream(self, prompt_ids: Many[int], params: SamplingParams | None = None) -> AsyncIterator[Token]:
        """Yield the tokens of one request as they are sampled; leaving the loop early cancels it."""
        self._check_started()
        request = self.submit(prompt_ids, params)
        try:
            async for token in request.astream():
                yield token
        finally:
            request.cancel()

    def sample(self, prompts: Many[Many[int]], params: SamplingParams | None = None) -> list[Generation]:
        """Return the samples of many prompts, computed together, in the order of the prompts."""
        requests = [self.submit(prompt, params) for prompt in prompts]
        return [request.result() for request in requests]

    def step(self) -> bool:
        """Advance every running sequence by one token; return whether there is more to do.

        An error ends the request that caused it, whose result raises it; the others continue.
        """
        with self._lock, torch.no_grad(), self.sizes.device_context():
            try:
                self._take_queued()
                self._stepper.advance()
            except Exception as error:  # noqa: BLE001 - raised by the requests
                self._stepper.fail(error)
            return self._has_work()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take no step inside the block. Change shared weights here, then call `update_weights`, also inside."""
        with self._state:
            self._num_holding += 1
        try:
            with self._lock:
                with torch.no_grad():
                    self._stepper.read_in_flight()
                yield
        finally:
            with self._state:
                self._num_holding -= 1
                self._state.notify_all()

    def update_weights(
        self, version: int, state: Mapping[str, Tensor] | None = None, *, recompute: bool = True
    ) -> None:
        """Draw tokens from new weights from the next step on; they carry `version`.

        Without `state`, the shared weights have already been changed in place. Cached keys and values of older weights
        are not reused. Running sequences compute their tokens again, so that each log-probability is exact for its
        version; with `recompute=False` they continue from the old keys and values, which is faster but not exact.
        """
        with self.paused(), torch.no_grad(), self.sizes.device_context():
            if state is None:
                self._weights.pull()
            else:
                self._weights.load(state)
            self._runner.refresh(have_moved=self._weights.have_moved())
            self._stepper.switch_weights(version, recompute=recompute)

    def start(self) -> "Engine":
        """Start a background thread that takes the steps."""
        with self._state:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sharpen-engine", daemon=True)
                self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the background thread; unfinished requests are cancelled."""
        with self._state:
            thread, self._is_stopping = self._thread, True
            self._state.notify_all()
        if thread is not None:
            thread.join()
        with self.paused():
            self._take_queued()
            for request in dict.fromkeys(each.request for each in self._stepper.sequences):
                self._stepper.cancel(request)
        with self._state:
            self._thread, self._is_stopping = None, False

    def __enter__(self) -> "Engine":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def cancel(self, request: Request) -> None:
        """End a request at the next step; its result is what was sampled so far, with the finish reason `cancelled`."""
        with self._state:
            self._cancelled.append(request)
            self._state.notify_all()

    def listen(self, request: Request, listener: Listener) -> None:
        """Call `listener` with the tokens of this request so far, then with each later one; it must not block."""
        with self._state:
            events = [event for sequence in request.sequences for event in sequence.events_so_far()]
            if events:
                listener(events)
            request.listeners.append(listener)

    def stop_listening(self, request: Request, listener: Listener) -> None:
        with self._state:
            if listener in request.listeners:
                request.listeners.remove(listener)

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._is_stopping or (self._has_work() and not self._num_holding))
                if self._is_stopping:
                    return
            try:
                self.step()
            except Exception as error:  # noqa: BLE001 - not caused by a request
                log.error("an engine step failed: %s", describe(error))

    def _has_work(self) -> bool:
        return bool(self._new or self._cancelled or not self._stepper.is_idle)

    def _take_queued(self) -> None:
        """Pass submitted and cancelled requests on to the stepper."""
        while self._new:
            self._stepper.add(self._new.popleft())
        if self._cancelled:
            self._stepper.read_in_flight()
        while self._cancelled:
            self._stepper.cancel(self._cancelled.popleft())

    def _sequences_of(self, request: Request, limit: int) -> list[Sequence]:
        params, arrival = request.params, next(self._arrivals)
        seed = self._random.getrandbits(64) if params.seed is None else params.seed
        eos_ids = frozenset() if params.ignore_eos else self.sizes.eos_ids
        return [
            Sequence(
                request=request,
                index=index,
                params=params,
                seed=sample_seed(seed, index),
                tokens=list(request.prompt_ids),
                num_prompt=len(request.prompt_ids),
                order=(arrival, index),
                limit=limit,
                end_ids=eos_ids.union(params.stop_token_ids),
                text=None if self._tokenizer is None else TextStream(self._tokenizer, params.stop),
            )
            for index in range(params.n)
        ]

    def _check_params(self, params: SamplingParams) -> None:
        if params.stop and self._tokenizer is None:
            raise InvalidInputError(
                f"stop is {params.stop!r}, but the engine has no tokenizer: create it as Engine(model, tokenizer)"
            )
        if params.logprobs > self.sizes.vocab_size:
            raise InvalidInputError(f"logprobs is {params.logprobs}, but the model has {self.sizes.vocab_size} tokens")

    def _check_started(self) -> None:
        if not self.is_started:
            raise EngineError("the engine is not started: call engine.start() before awaiting a result")
