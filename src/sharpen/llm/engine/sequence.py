"""One sample on its way: its tokens, what of them is in the cache, and what was noted beside each token."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .outputs import FinishReason, Sample, Token, TopLogprobs
from .sampling_params import SamplingParams
from .text import TextStream

if TYPE_CHECKING:
    from .request import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one sample; the scheduler moves it, the engine appends to it.

    `computed` tokens have their keys and values in `blocks`; `prefixes` are the numbers under which the pool knows the
    first of these blocks. `in_flight` tokens were launched on the device and not read back yet. `slot` is None while
    the sequence waits; `row` is its place in the batch launched last. `followers` wait for this one, because their
    tokens are the same.
    """

    request: "Request"
    index: int
    params: SamplingParams
    seed: int
    tokens: list[int]
    num_prompt: int
    order: tuple[int, int]
    limit: int
    end_ids: frozenset[int]
    text: TextStream | None = None
    blocks: list[int] = field(default_factory=list)
    prefixes: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    followers: list["Sequence"] = field(default_factory=list)
    computed: int = 0
    in_flight: int = 0
    slot: int | None = None
    row: int = -1
    is_stale: bool = False
    cached_tokens: int | None = None
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop: int | str | None = None
    end: int = field(init=False)
    """The number of its tokens at which it ends by length."""

    def __post_init__(self) -> None:
        self.end = self.num_prompt + self.limit

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has been sampled yet."""
        return len(self.tokens) == self.num_prompt

    @property
    def num_launched(self) -> int:
        """How many tokens it has, those in flight counted in."""
        return len(self.tokens) + self.in_flight

    @property
    def is_watched(self) -> bool:
        """Whether each token has more to it than its numbers: someone listens, or its neighbours are asked for."""
        return bool(self.params.logprobs or self.request.listeners)

    def append(self, token_id: int, logprob: float, model_logprob: float, version: int, top: TopLogprobs) -> str:
        """Note a sampled token, and whether it is the last; return the text that became readable."""
        self.tokens.append(token_id)
        self.logprobs.append(logprob)
        self.model_logprobs.append(model_logprob)
        self.versions.append(version)
        if self.params.logprobs:
            self.top_logprobs.append(top)
        if token_id in self.end_ids:
            self.finish_reason, self.stop = "stop", token_id
            return self.text.finish() if self.text else ""
        text = self.text.append(token_id) if self.text else ""
        if self.text and self.text.stopped_by is not None:
            self.finish_reason, self.stop = "stop", self.text.stopped_by
        elif len(self.tokens) >= self.end:
            self.finish_reason = "length"
            text += self.text.finish() if self.text else ""
        return text

    def events_so_far(self) -> list[Token]:
        """The tokens sampled up to now, for somebody who begins to listen; the text so far comes with the last."""
        text = self.text.read_eagerly() if self.text else ""
        ids = self.tokens[self.num_prompt :]
        tops = self.top_logprobs or [()] * len(ids)
        last = len(ids) - 1
        return [
            Token(
                sample=self.index,
                id=ids[place],
                logprob=self.logprobs[place],
                model_logprob=self.model_logprobs[place],
                version=self.versions[place],
                top=tops[place],
                text=text if place == last else "",
                finish_reason=self.finish_reason if place == last else None,
            )
            for place in range(len(ids))
        ]

    def sample(self) -> Sample:
        """The finished sample."""
        return Sample(
            index=self.index,
            token_ids=self.tokens[self.num_prompt :],
            logprobs=self.logprobs,
            model_logprobs=self.model_logprobs,
            versions=self.versions,
            top_logprobs=self.top_logprobs,
            text_source=self.text,
            finish_reason=self.finish_reason or "cancelled",
            stop=self.stop,
        )
