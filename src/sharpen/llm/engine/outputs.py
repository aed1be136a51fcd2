"""What comes out of the engine: tokens while they are sampled, and the finished samples."""

from dataclasses import dataclass, field
from typing import Literal

from .text import TextStream

FinishReason = Literal["stop", "length", "cancelled"]
TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token of a stream.

    `logprob` is of the distribution that was sampled from (temperature, top-k, top-p applied; 0 when greedy),
    `model_logprob` of the model's own. `text` is what became readable with this token: some tokens are parts of a
    character, and text that may begin a stop string is held back. A last event without a token (`id` None) carries
    held-back text and the reason for the end.
    """

    sample: int
    id: int | None
    logprob: float
    model_logprob: float
    version: int
    top: TopLogprobs
    text: str
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished sample: its tokens, and beside each its log-probabilities and its weights version.

    `token_ids` hold everything that was sampled, also an end-of-text token and the tokens of a stop string; `text`
    leaves those out (None without a tokenizer), and is made of the tokens when it is first asked for. `stop` is the id
    or string that ended it.
    """

    index: int
    token_ids: list[int]
    logprobs: list[float]
    model_logprobs: list[float]
    versions: list[int]
    top_logprobs: list[TopLogprobs]
    text_source: str | TextStream | None = field(repr=False, compare=False)
    finish_reason: FinishReason
    stop: int | str | None

    @property
    def text(self) -> str | None:
        source = self.text_source
        return source.text if isinstance(source, TextStream) else source


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer to one request: `n` samples of one prompt. `cached_tokens` of the prompt were found in the cache."""

    prompt_ids: list[int]
    samples: list[Sample]
    cached_tokens: int
