"""What another rank has sampled, on its way to rank 0: plain values, the text included."""

from typing import Self

import msgspec

from ...engine import Generation
from ...engine.request import FinishReason, Sample, TopLogprobs


class DrawnSample(msgspec.Struct, frozen=True, array_like=True):
    """One `Sample`."""

    index: int
    token_ids: list[int]
    logprobs: list[float]
    model_logprobs: list[float]
    versions: list[int]
    top_logprobs: list[TopLogprobs]
    text: str | None
    finish_reason: FinishReason
    stop: int | str | None


class Drawn(msgspec.Struct, frozen=True):
    """One `Generation`."""

    prompt_ids: list[int]
    samples: list[DrawnSample]
    cached_tokens: int

    @classmethod
    def of(cls, generation: Generation) -> Self:
        samples = [
            DrawnSample(*(getattr(sample, name) for name in DrawnSample.__struct_fields__))
            for sample in generation.samples
        ]
        return cls(generation.prompt_ids, samples, generation.cached_tokens)

    def generation(self) -> Generation:
        samples = [Sample(*msgspec.structs.astuple(each)) for each in self.samples]
        return Generation(self.prompt_ids, samples, self.cached_tokens)
