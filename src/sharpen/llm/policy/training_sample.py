"""What the policy learns from: one sequence, and beside each of its tokens what the loss needs. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import InvalidInputError

_PER_TOKEN = ("loss_mask", "advantages", "old_logprobs", "ref_logprobs", "sampler_logprobs", "returns", "values")


@dataclass(slots=True)
class TrainingSample:
    """One training sequence. All but the temperature have one entry per token.

    What stands outside the mask has no influence, whatever it is. The first token follows nothing, so it is never
    trained.
    """

    token_ids: Sequence[int]
    loss_mask: Sequence[bool]
    """True where the token is trained."""
    advantages: Sequence[float]
    old_logprobs: Sequence[float]
    """Of the policy that the ratio is taken against."""
    ref_logprobs: Sequence[float] | None = None
    """Of the reference; needed where the loss has a KL."""
    sampler_logprobs: Sequence[float] | None = None
    """Of the policy that sampled; needed where the loss corrects for the distance between it and `old_logprobs`."""
    returns: Sequence[float] | None = None
    """What a critic learns."""
    values: Sequence[float] | None = None
    """What the critic said before the update."""
    temperature: float = 1.0
    """All log-probabilities are those of the distribution at this temperature."""

    def __post_init__(self) -> None:
        if not len(self.token_ids):
            raise InvalidInputError("token_ids is empty: leave out samples without tokens")
        for name in _PER_TOKEN:
            each = getattr(self, name)
            if each is not None and len(each) != len(self.token_ids):
                raise InvalidInputError(
                    f"{name} has {len(each)} entries for {len(self.token_ids)} tokens: pass one for each"
                )
        if not (isinstance(self.temperature, int | float) and 0 < self.temperature < math.inf):
            raise InvalidInputError(
                f"temperature is {self.temperature!r}: use a number above 0, since greedy samples have no distribution"
            )

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        """How many tokens are trained."""
        return sum(map(bool, self.loss_mask[1:]))
