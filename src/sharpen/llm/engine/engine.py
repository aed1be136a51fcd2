"""The engine: samples many requests at once from one model, on the CPU or one GPU.

Steps are taken by a background thread (`start`), by `step`, or by whoever waits for a result. One lock is held during a
step; what changes the weights takes the same lock, so no token is drawn from half-changed weights.
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

from ...errors import InvalidInputError, in_words
from .errors import EngineError
from .noise import sample_seed
from .outputs import Generation, Token
from .request import Listener, Request
from .runners import build_runner
from .sampling_params import SamplingParams
from .sequence import Sequence
from .sizes import Sizes
from .stepper import Stepper
from .text import Decoder as TextDecoder, TextStream
from .weights import Weights

log = logging.getLogger(__name__)


class Engine:
    """Samples from a transformers model.

    `max_batch` sequences run at once; `max_tokens` is the room of the cache in tokens, which all of them share.
    `tokenizer` is only needed for stop strings and text. `device` and `dtype` other than the model's make a copy of
    the weights; else they are shared with whoever holds the model. `seed` is where requests without one get theirs.
    `overlap` launches a step before the one before was read, and `static_shapes` rounds decode steps up to few shapes
    in fixed tensors, which `use_graphs` then records (None: both on a GPU). Fixed shapes also lay weights of one input
    side by side in memory: they stay the model's own parameters, which a trainer changes in place.
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
        self._state = threading.Condition()  # guards what threads tell each other
        with torch.no_grad(), self.sizes.device_context():
            self._runner = build_runner(
                self._weights.model,
                self.sizes,
                static_shapes=static_shapes,
                use_graphs=use_graphs,
            )
            self._weights.have_moved()  # the runner may have laid some side by side
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
        """Queue a request and return at once. What cannot ever run is refused here."""
        params = params or SamplingParams()
        self._check_params(params)
        request = Request(self, self.sizes.checked_prompt(prompt_ids), params)
        limit = self.sizes.checked_limit(len(request.prompt_ids), params.max_new_tokens)
        with self._state:
            if self._is_stopping:
                raise EngineError("the engine is being stopped: call start() before new requests")
            request.sequences = self._sequences_of(request, limit)
            self._new.append(request)
            self._state.notify_all()
        return request

    async def generate(self, prompt_ids: Many[int], params: SamplingParams | None = None) -> Generation:
        """The samples of one request, in an event loop; needs the background thread."""
        self._check_started()
        return await self.submit(prompt_ids, params)

    async def stream(self, prompt_ids: Many[int], params: SamplingParams | None = None) -> AsyncIterator[Token]:
        """The tokens of one request as they are sampled; leaving the loop early cancels it."""
        self._check_started()
        request = self.submit(prompt_ids, params)
        try:
            async for token in request.astream():
                yield token
        finally:
            request.cancel()

    def sample(self, prompts: Many[Many[int]], params: SamplingParams | None = None) -> list[Generation]:
        """The samples of many prompts, computed together; the answers come in the order of the prompts."""
        requests = [self.submit(prompt, params) for prompt in prompts]
        return [request.result() for request in requests]

    def step(self) -> bool:
        """Advance every running sequence by one token; return whether there is more to do.

        An error ends the request that it belongs to, whose result raises it; the others go on.
        """
        with self._lock, torch.no_grad(), self.sizes.device_context():
            try:
                self._take_news()
                self._stepper.advance()
            except Exception as error:  # noqa: BLE001 - the requests have it
                self._stepper.fail(error)
            return self._has_work()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No step is taken inside. Change shared weights here, then call `update_weights`, also in here."""
        with self._state:
            self._num_holding += 1
        try:
            with self._lock:
                with torch.no_grad():
                    self._stepper.settle()
                yield
        finally:
            with self._state:
                self._num_holding -= 1
                self._state.notify_all()

    def update_weights(
        self, version: int, state: Mapping[str, Tensor] | None = None, *, recompute: bool = True
    ) -> None:
        """From the next step on tokens are drawn from new weights and carry `version`.

        Without `state` the shared weights have been changed in place already. What the cache holds of older weights is
        not found again. Running sequences compute their tokens anew, so that each log-probability is that of its
        version; with `recompute=False` they go on from the old keys and values, which is faster and not exact.
        """
        with self.paused(), torch.no_grad(), self.sizes.device_context():
            if state is None:
                self._weights.pull()
            else:
                self._weights.load(state)
            self._runner.refresh(have_moved=self._weights.have_moved())
            self._stepper.swap(version, recompute=recompute)

    def start(self) -> "Engine":
        """Take steps in a background thread from now on."""
        with self._state:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sharpen-engine", daemon=True)
                self._thread.start()
        return self

    def stop(self) -> None:
        """End the background thread; requests that are not finished are cancelled."""
        with self._state:
            thread, self._is_stopping = self._thread, True
            self._state.notify_all()
        if thread is not None:
            thread.join()
        with self.paused():
            self._take_news()
            for request in dict.fromkeys(each.request for each in self._stepper.sequences):
                self._stepper.cancel(request)
        with self._state:
            self._thread, self._is_stopping = None, False

    def __enter__(self) -> "Engine":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def cancel(self, request: Request) -> None:
        """End a request at the next step; what was sampled so far is its result, with the reason `cancelled`."""
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
            except Exception as error:  # noqa: BLE001 - it belongs to no request
                log.error("a step of the engine failed: %s", in_words(error))

    def _has_work(self) -> bool:
        return bool(self._new or self._cancelled or not self._stepper.is_idle)

    def _take_news(self) -> None:
        """Let in what was submitted, end what was cancelled."""
        while self._new:
            self._stepper.add(self._new.popleft())
        if self._cancelled:
            self._stepper.settle()
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
                f"stop is {params.stop!r}, but the engine has no tokenizer: Engine(model, tokenizer)"
            )
        if params.logprobs > self.sizes.vocab_size:
            raise InvalidInputError(f"logprobs is {params.logprobs}, but the model has {self.sizes.vocab_size} tokens")

    def _check_started(self) -> None:
        if not self.is_started:
            raise EngineError("nothing takes the engine's steps: call engine.start() before you await")
