"""Training sequences from the turns of a rollout: tokens in, tokens out, nothing is tokenised again. No torch.

Invariants: every sampled token is trained exactly once, with the log-probability that its sampler gave it, after
exactly the tokens that the sampler saw before it. No other token (of a prompt, a user, a tool) is trained.

`Sample` is what was sampled, `TrainingSample` what the policy learns from: one sequence, and beside each of its tokens
what the loss needs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ...errors import InvalidInputError

NOT_SAMPLED = -1
"""`turn_of_token` of a token that no turn of this sequence sampled."""


class Turn(msgspec.Struct, frozen=True):
    """One LLM call: what the model read, what it sampled, and the reward that the agent gave it."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    logprobs: Sequence[float]
    """The sampler's, one per response token."""
    reward: float | None = None
    weights_versions: Sequence[str] | None = None
    """The version of the weights that sampled each response token, where it is known."""

    def __post_init__(self) -> None:
        _check_ids("prompt_ids", self.prompt_ids)
        _check_ids("response_ids", self.response_ids)
        if not len(self.prompt_ids):
            raise InvalidInputError("prompt_ids is empty, but the first response token needs a token to follow")
        _check_length("logprobs", self.logprobs, self.response_ids)
        if self.weights_versions is not None:
            _check_length("weights_versions", self.weights_versions, self.response_ids)
        _check_logprobs(self.logprobs)
        if self.reward is not None and not _is_finite(self.reward):
            raise InvalidInputError(f"the reward of a turn is {self.reward!r}: use a finite number, or None")


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One training sequence of a rollout. All but the last six fields have one entry per token."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """True where a turn of this sequence sampled the token."""
    logprobs: tuple[float, ...]
    """The sampler's; 0 where the mask is False."""
    turn_of_token: tuple[int, ...]
    """The number of the turn within its rollout, from 0; NOT_SAMPLED where the mask is False."""
    weights_versions: tuple[str | None, ...]
    """None where the mask is False or the version is not known."""
    turns: tuple[int, ...]
    """The turns of the rollout that this sequence trains, in the order of time."""
    turn_rewards: tuple[float | None, ...]
    """The reward of each of `turns`; None where the agent gave none."""
    num_turns: int
    """How many turns the whole rollout has."""
    rollout_id: str = ""
    group: str = ""
    reward: float | None = None
    """The final reward of the whole rollout, the same in each of its sequences."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        """How many tokens are trained. It is 0 where every turn of the sequence came back empty."""
        return sum(self.loss_mask)


def merge_turns(
    turns: Sequence[Turn], *, rollout_id: str = "", group: str = "", reward: float | None = None
) -> list[Sample]:
    """The training sequences of one rollout, whose turns are given in the order of time.

    A turn goes on a sequence when its prompt starts with exactly the tokens of it (the longest, where several fit);
    otherwise it begins a new one. So conversations may be interleaved, as those of an agent and its sub-agent are. Of
    two turns that go on from the same point, the second begins a new sequence, in which what it shares with the first
    is read but not trained again. Each turn is in one sequence, also one that sampled nothing: it may carry a reward.
    """
    open_sequences: list[_Sequence] = []
    for number, turn in enumerate(turns):
        fitting = [each for each in open_sequences if each.is_prefix_of(turn.prompt_ids)]
        if fitting:
            sequence = max(fitting, key=lambda each: len(each.token_ids))
        else:
            sequence = _Sequence()
            open_sequences.append(sequence)
        sequence.add(number, turn)
    return [
        each.as_sample(num_turns=len(turns), rollout_id=rollout_id, group=group, reward=reward)
        for each in open_sequences
    ]


@dataclass(eq=False, slots=True)
class _Sequence:
    """A sequence that may still grow."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn_of_token: list[int] = field(default_factory=list)
    weights_versions: list[str | None] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    turn_rewards: list[float | None] = field(default_factory=list)

    def is_prefix_of(self, prompt_ids: Sequence[int]) -> bool:
        length = len(self.token_ids)
        return length <= len(prompt_ids) and self.token_ids == list(prompt_ids[:length])

    def add(self, number: int, turn: Turn) -> None:
        read = turn.prompt_ids[len(self.token_ids) :]
        sampled = turn.response_ids
        self.token_ids += [*read, *sampled]
        self.loss_mask += [False] * len(read) + [True] * len(sampled)
        self.logprobs += [0.0] * len(read) + list(map(float, turn.logprobs))
        self.turn_of_token += [NOT_SAMPLED] * len(read) + [number] * len(sampled)
        self.weights_versions += [None] * len(read)
        self.weights_versions += turn.weights_versions or [None] * len(sampled)
        self.turns.append(number)
        self.turn_rewards.append(turn.reward)

    def as_sample(self, *, num_turns: int, rollout_id: str, group: str, reward: float | None) -> Sample:
        return Sample(
            token_ids=tuple(self.token_ids),
            loss_mask=tuple(self.loss_mask),
            logprobs=tuple(self.logprobs),
            turn_of_token=tuple(self.turn_of_token),
            weights_versions=tuple(self.weights_versions),
            turns=tuple(self.turns),
            turn_rewards=tuple(self.turn_rewards),
            num_turns=num_turns,
            rollout_id=rollout_id,
            group=group,
            reward=reward,
        )


def _check_ids(name: str, ids: Sequence[int]) -> None:
    # Prompts are long and come again with every turn: two passes in C, no loop.
    if set(map(type, ids)) <= {int} and min(ids, default=0) >= 0:
        return
    position, token = next((place, each) for place, each in enumerate(ids) if type(each) is not int or each < 0)
    raise InvalidInputError(f"{name}[{position}] is {token!r}: use ints, 0 or more")


def _check_logprobs(logprobs: Sequence[float]) -> None:
    # As with the ids, two passes in C: a sum is finite only where all of its parts are.
    if set(map(type, logprobs)) <= {float, int} and math.isfinite(sum(logprobs)):
        return
    for position, logprob in enumerate(logprobs):
        if not _is_finite(logprob):
            raise InvalidInputError(f"logprobs[{position}] is {logprob!r}: use finite numbers")


def _check_length(name: str, values: Sequence[object], response_ids: Sequence[int]) -> None:
    if len(values) != len(response_ids):
        raise InvalidInputError(
            f"{name} has {len(values)} entries for {len(response_ids)} response tokens: record one for each"
        )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


# -- what the policy learns from ----------------------------------------------------------------------


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
