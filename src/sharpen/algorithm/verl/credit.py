"""Credit: from the rewards of rollouts to an advantage on every sampled token.

`grpo` and `rloo` compare a rollout with the others of its group: whole rollouts where there is only a final reward, and
call by call in a group where an agent rewarded calls. `reinforce_plus_plus` and `gae` go along the trajectory of each
rollout, token by token, and compare with the whole batch.

A group without spread gives no gradient, and neither does a rollout that is alone in its group. Their samples are left
out, and counted.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...errors import ConfigError, InvalidInputError
from ...llm.policy.advantages import (
    GroupAdvantages,
    Scale,
    gae_advantages,
    reinforce_plus_plus_advantages,
    turn_advantages,
    whiten,
)
from ...llm.policy.losses import kl_estimate
from ...llm.policy.samples import Sample, TrainingSample
from ...llm.policy.settings import KLKind
from .training_data import CollectedRollout

Estimator = Literal["grpo", "rloo", "reinforce_plus_plus", "gae"]
PerToken = Sequence[Sequence[float]]
"""For each sequence of the rollouts that were not lost, in their order, one number per token."""
Penalties = Sequence[Sequence[Tensor]]
"""For each sequence of each trajectory what is taken from the reward of each token."""


# -- rollouts that count ------------------------------------------------------------------------------


class TurnSpan(NamedTuple):
    """The sampled tokens of one call within its sequence."""

    turn: int
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sequence of a rollout, with what is known of its tokens besides."""

    sample: Sample
    spans: list[TurnSpan]
    """In the order of time."""
    temperature: float
    old_logprobs: Sequence[float] | None = None
    ref_logprobs: Sequence[float] | None = None
    values: Sequence[float] | None = None

    @property
    def num_trained(self) -> int:
        return sum(span.num_tokens for span in self.spans)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout that counts."""

    rollout: CollectedRollout
    reward: float
    sequences: list[TrainingSequence]

    @property
    def earned(self) -> list[float]:
        """What each call earned: the final reward stands at the last where no call was rewarded by itself."""
        if self.rollout.turn_rewards:
            return list(self.rollout.turn_rewards)
        return [0.0] * (self.rollout.num_calls - 1) + [self.reward]

    def in_time(self) -> list[tuple[TrainingSequence, TurnSpan]]:
        """The sampled tokens of all calls, in the order of time; conversations may have taken turns."""
        found = [(sequence, span) for sequence in self.sequences for span in sequence.spans]
        return found if len(self.sequences) == 1 else sorted(found, key=lambda each: each[1].turn)


class Laid(NamedTuple):
    """What one sequence is given: an entry per token, 0 where nothing was sampled."""

    advantages: list[float]
    returns: list[float] | None = None
    """What a critic learns."""
    has_spread: bool = True
    """False where there was nothing to compare with, or everything was the same."""


def turn_spans(sample: Sample) -> list[TurnSpan]:
    """Where the calls of a sequence stand. A call that sampled nothing has no place."""
    return [span for start, stop in _runs(sample.loss_mask) for span in _spans_of_run(sample, start, stop)]


def _spans_of_run(sample: Sample, start: int, stop: int) -> Iterator[TurnSpan]:
    """Two calls stand in one run where the second was asked with nothing but the sequence so far."""
    while start < stop:
        turn = sample.turn_of_token[start]
        is_last = sample.turn_of_token[stop - 1] == turn
        end = stop if is_last else start + sample.turn_of_token[start:stop].count(turn)
        yield TurnSpan(turn, start, end)
        start = end


def _runs(mask: tuple[bool, ...]) -> Iterator[tuple[int, int]]:
    """Where the mask is True, from and to."""
    stop = 0
    while (start := _place(mask, True, stop)) < len(mask):
        stop = _place(mask, False, start)
        yield start, stop


def _place(mask: tuple[bool, ...], value: bool, start: int) -> int:
    try:
        return mask.index(value, start)
    except ValueError:
        return len(mask)


def on_spans(length: int, pieces: Iterable[tuple[TurnSpan, Sequence[float]]]) -> list[float]:
    """The values of each span at its place, and 0 elsewhere."""
    found: list[float] = []
    for span, values in pieces:
        found += [0.0] * (span.start - len(found))
        found += values
    return found + [0.0] * (length - len(found))


# -- credit -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Credit:
    """What a batch of rollouts teaches."""

    samples: list[TrainingSample]
    sources: list[Sample]
    """The sequence that each of `samples` was made of; it names its rollout and its group."""
    metrics: dict[str, float]
    is_flat: bool
    """Nothing is to be learned: no group (or, where they do not matter, not the whole batch) has any spread."""

    def by_group(self) -> list[list[TrainingSample]]:
        """The samples of each group that has any, in the order in which groups come."""
        groups: dict[str, list[TrainingSample]] = {}
        for sample, source in zip(self.samples, self.sources, strict=True):
            groups.setdefault(source.group, []).append(sample)
        return list(groups.values())


def assign_credit(
    rollouts: Sequence[CollectedRollout],
    *,
    estimator: Estimator = "grpo",
    gamma: float = 1.0,
    lam: float = 1.0,
    norm_by_std: bool = True,
    kl_in_reward_coef: float = 0.0,
    kl_kind: KLKind = "k3",
    ref_logprobs: PerToken | None = None,
    old_logprobs: PerToken | None = None,
    values: PerToken | None = None,
    temperature: float = 1.0,
    keeps_flat_groups: bool = False,
) -> Credit:
    """Advantages, laid on the tokens that were sampled.

    Without `old_logprobs` those of the sampler are the old ones. With a `kl_in_reward_coef` the KL to the reference is
    taken from the rewards, of the tokens or summed up over what is compared. `temperature` is that of calls that do not
    say. `keeps_flat_groups` keeps what has no spread for losses other than the policy's, such as KL or entropy.
    """
    _check(estimator, kl_in_reward_coef, ref_logprobs, values)
    trajectories = _trajectories(rollouts, temperature, old_logprobs, ref_logprobs, values)
    penalties, kl_metrics = _penalties(trajectories, kl_in_reward_coef, kl_kind)
    scale = _scale(estimator, norm_by_std=norm_by_std)
    groups = compare(trajectories, scale=scale, gamma=gamma)
    if estimator == "gae":
        laid = gae_credit(trajectories, gamma=gamma, lam=lam, penalties=penalties)
    elif estimator == "reinforce_plus_plus":
        laid = reinforce_credit(trajectories, gamma=gamma, penalties=penalties)
    elif penalties is None:
        laid = groups.laid(trajectories)
    else:
        laid = compare(trajectories, scale=scale, gamma=gamma, penalties=penalties).laid(trajectories)
    is_alone = groups.is_alone if estimator in ("grpo", "rloo") else [False] * len(trajectories)
    chosen = list(_chosen(trajectories, laid, is_alone, keeps_flat_groups=keeps_flat_groups))
    metrics = batch_metrics(rollouts) | _group_metrics(groups) | kl_metrics
    metrics["sequences"] = float(len(chosen))
    metrics["trained_tokens"] = float(sum(sequence.num_trained for sequence, _ in chosen))
    return Credit(
        [_training_sample(*each) for each in chosen],
        [sequence.sample for sequence, _ in chosen],
        metrics,
        is_flat=not any(each.has_spread for of_rollout in laid for each in of_rollout),
    )


def _check(estimator: str, coef: float, ref_logprobs: PerToken | None, values: PerToken | None) -> None:
    if estimator not in get_args(Estimator):
        raise ConfigError(f"estimator is {estimator!r}: use {', '.join(map(repr, get_args(Estimator)))}")
    if not coef >= 0:
        raise ConfigError(f"kl_in_reward_coef is {coef}: use 0 or more")
    if coef and ref_logprobs is None:
        raise InvalidInputError(
            f"kl_in_reward_coef is {coef}, which needs ref_logprobs: pass those of the reference model"
        )
    if estimator == "gae" and values is None:
        raise InvalidInputError("estimator is 'gae', which needs values: pass those of a critic")


def _scale(estimator: Estimator, *, norm_by_std: bool) -> Scale:
    if estimator == "rloo":
        return "leave-one-out"
    return "std" if norm_by_std else "none"


# -- in ----------------------------------------------------------------------------------------------


def _trajectories(
    rollouts: Sequence[CollectedRollout],
    temperature: float,
    old_logprobs: PerToken | None,
    ref_logprobs: PerToken | None,
    values: PerToken | None,
) -> list[Trajectory]:
    """The rollouts that count, each sequence with its own numbers."""
    remaining = [each for each in rollouts if not each.is_lost]
    num_sequences = sum(len(each.samples) for each in remaining)
    given = {"old_logprobs": old_logprobs, "ref_logprobs": ref_logprobs, "values": values}
    for name, rows in given.items():
        if rows is not None and len(rows) != num_sequences:
            raise InvalidInputError(
                f"{name} has {len(rows)} lists, but the rollouts that were not lost have {num_sequences} sequences: "
                "pass one list for each, in the same order"
            )
    found = []
    first = 0
    for rollout in remaining:
        if rollout.reward is not None:
            sequences = [
                TrainingSequence(
                    sample,
                    turn_spans(sample),
                    temperature if own is None else own,
                    *(None if rows is None else _fitting(name, rows[place], sample) for name, rows in given.items()),
                )
                for place, (sample, own) in enumerate(zip(rollout.samples, rollout.temperatures, strict=True), first)
            ]
            found.append(Trajectory(rollout, rollout.reward, sequences))
        first += len(rollout.samples)
    return found


def _fitting(name: str, row: Sequence[float], sample: Sample) -> Sequence[float]:
    if len(row) != len(sample):
        raise InvalidInputError(
            f"{name} has {len(row)} entries for a sequence of {len(sample)} tokens of rollout {sample.rollout_id!r}: "
            "pass one for each token"
        )
    return row


def _penalties(
    trajectories: Sequence[Trajectory], coef: float, kind: KLKind
) -> tuple[Penalties | None, dict[str, float]]:
    """What the KL to the reference costs each token, and its mean over all sampled ones."""
    if not coef:
        return None, {}
    kls = [[_kl(each, kind) for each in trajectory.sequences] for trajectory in trajectories]
    num_tokens = sum(each.num_trained for trajectory in trajectories for each in trajectory.sequences)
    mean = sum(float(kl_T.sum()) for of_rollout in kls for kl_T in of_rollout) / max(num_tokens, 1)
    return [[coef * kl_T for kl_T in of_rollout] for of_rollout in kls], {"reward_kl": mean}


def _kl(sequence: TrainingSequence, kind: KLKind) -> Tensor:
    old = sequence.sample.logprobs if sequence.old_logprobs is None else sequence.old_logprobs
    old_T, ref_T = (torch.as_tensor(each, dtype=torch.float64) for each in (old, sequence.ref_logprobs))
    return torch.where(torch.tensor(sequence.sample.loss_mask), kl_estimate(old_T, ref_T, kind), 0.0)


# -- out ---------------------------------------------------------------------------------------------


def _chosen(
    trajectories: Sequence[Trajectory],
    laid: Sequence[Sequence[Laid]],
    is_alone: Sequence[bool],
    *,
    keeps_flat_groups: bool,
) -> Iterator[tuple[TrainingSequence, Laid]]:
    """The sequences that are trained: those with sampled tokens and something to compare them with."""
    for trajectory, of_rollout, alone in zip(trajectories, laid, is_alone, strict=True):
        for sequence, each in zip(trajectory.sequences, of_rollout, strict=True):
            if sequence.spans and not alone and (each.has_spread or keeps_flat_groups):
                yield sequence, each


def _training_sample(sequence: TrainingSequence, laid: Laid) -> TrainingSample:
    sample = sequence.sample
    is_sampler = sequence.old_logprobs is None
    return TrainingSample(
        token_ids=sample.token_ids,
        loss_mask=sample.loss_mask,
        advantages=laid.advantages,
        old_logprobs=sample.logprobs if sequence.old_logprobs is None else sequence.old_logprobs,
        ref_logprobs=sequence.ref_logprobs,
        sampler_logprobs=None if is_sampler else sample.logprobs,
        returns=laid.returns,
        values=sequence.values,
        temperature=sequence.temperature,
    )


def _group_metrics(groups: "GroupCredit") -> dict[str, float]:
    return {
        "groups": float(groups.num_groups),
        "flat_groups": groups.num_flat / max(groups.num_groups, 1),
        "alone": float(sum(groups.is_alone)),
    }


# -- credit relative to a group -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupCredit:
    """How the rollouts of each group compare."""

    advantages: list[float]
    """Of each entry, and so are the next two."""
    is_used: list[bool]
    is_flat: list[bool]
    first_entry: list[int]
    """Of each trajectory."""
    is_by_turn: list[bool]
    """Whether its calls are entries of their own."""
    num_groups: int
    """Those with at least two members."""
    num_flat: int
    is_alone: list[bool]
    """Whether a trajectory has no other in its group."""

    def laid(self, trajectories: Sequence[Trajectory]) -> list[list[Laid]]:
        """The advantages on the tokens of each sequence."""
        return [
            [self._laid(sequence, number) for sequence in trajectory.sequences]
            for number, trajectory in enumerate(trajectories)
        ]

    def _laid(self, sequence: TrainingSequence, number: int) -> Laid:
        entries = [_entry(span.turn, self.first_entry[number], self.is_by_turn[number]) for span in sequence.spans]
        pieces = [
            (span, [self.advantages[entry]] * span.num_tokens)
            for span, entry in zip(sequence.spans, entries, strict=True)
        ]
        has_spread = any(self.is_used[entry] and not self.is_flat[entry] for entry in entries)
        return Laid(on_spans(len(sequence.sample), pieces), has_spread=has_spread)


def compare(
    trajectories: Sequence[Trajectory], *, scale: Scale, gamma: float, penalties: Penalties | None = None
) -> GroupCredit:
    """Compare the rollouts of each group. A call is compared with the calls at the same place, by what came from it on.

    `gamma` discounts from call to call; where whole rollouts are compared there is nothing to discount.
    """
    by_turn = {each.rollout.group for each in trajectories if each.rollout.turn_rewards}
    is_by_turn = [each.rollout.group in by_turn for each in trajectories]
    rewards: list[float] = []
    owners: list[int] = []
    first_entry: list[int] = []
    for number, trajectory in enumerate(trajectories):
        first_entry.append(len(rewards))
        entries = trajectory.earned if is_by_turn[number] else [trajectory.reward]
        if penalties is not None:
            _take(entries, trajectory, penalties[number], is_by_turn[number])
        rewards += entries
        owners += [number] * len(entries)
    names = {name: place for place, name in enumerate(dict.fromkeys(each.rollout.group for each in trajectories))}
    group_N = torch.tensor([names[each.rollout.group] for each in trajectories], dtype=torch.long)
    rewards_K = torch.tensor(rewards, dtype=torch.float64)
    owner_K = torch.tensor(owners, dtype=torch.long)
    found = turn_advantages(rewards_K, owner_K, group_N, gamma=gamma, scale=scale)
    return _group_credit(found, group_N[owner_K], group_N, first_entry, is_by_turn)


def _group_credit(
    found: GroupAdvantages, group_K: Tensor, group_N: Tensor, first_entry: list[int], is_by_turn: list[bool]
) -> GroupCredit:
    size_G = torch.bincount(group_N)
    with_spread_G = torch.bincount(group_K, weights=(found.is_used & ~found.is_flat).double(), minlength=len(size_G))
    is_pair_G = size_G >= 2
    return GroupCredit(
        found.advantages.tolist(),
        found.is_used.tolist(),
        found.is_flat.tolist(),
        first_entry,
        is_by_turn,
        num_groups=int(is_pair_G.sum()),
        num_flat=int((is_pair_G & (with_spread_G == 0)).sum()),
        is_alone=(size_G[group_N] == 1).tolist(),
    )


def _entry(turn: int, first: int, is_by_turn: bool) -> int:
    return first + turn if is_by_turn else first


def _take(entries: list[float], trajectory: Trajectory, penalties: Sequence[Tensor], is_by_turn: bool) -> None:
    """What the tokens of each entry cost."""
    for sequence, penalty_T in zip(trajectory.sequences, penalties, strict=True):
        for span in sequence.spans:
            entries[_entry(span.turn, 0, is_by_turn)] -= float(penalty_T[span.start : span.stop].sum())


# -- credit along a trajectory ------------------------------------------------------------------------


def reinforce_credit(
    trajectories: Sequence[Trajectory], *, gamma: float, penalties: Penalties | None = None
) -> list[list[Laid]]:
    """REINFORCE++: what came from each token on, normalised over the batch."""
    rewards_BS, mask_BS = _rewards(trajectories, penalties)
    advantages_BS = reinforce_plus_plus_advantages(rewards_BS, mask_BS, gamma=gamma)
    has_spread = bool(advantages_BS.any())
    return _laid(trajectories, advantages_BS, None, has_spread=has_spread)


def gae_credit(
    trajectories: Sequence[Trajectory], *, gamma: float, lam: float, penalties: Penalties | None = None
) -> list[list[Laid]]:
    """What came from each token on beyond what the critic expected, normalised over the batch."""
    rewards_BS, mask_BS = _rewards(trajectories, penalties)
    values_BS = _rows(trajectories, [[_values(each) for each in one.sequences] for one in trajectories])
    advantages_BS, returns_BS = gae_advantages(values_BS, rewards_BS, mask_BS, gamma=gamma, lam=lam)
    # Also without spread in the rewards, the critic has something to learn.
    return _laid(trajectories, whiten(advantages_BS, mask_BS), returns_BS, has_spread=True)


def _values(sequence: TrainingSequence) -> Tensor:
    return torch.as_tensor(sequence.values, dtype=torch.float64)


# -- rows --------------------------------------------------------------------------------------------


def _rewards(trajectories: Sequence[Trajectory], penalties: Penalties | None) -> tuple[Tensor, Tensor]:
    """The reward of every sampled token, and where there is one.

    In float64: normalising would blow up what sums lose in half as many bits.
    """
    count_B = torch.tensor([sum(each.num_trained for each in one.sequences) for one in trajectories], dtype=torch.long)
    mask_BS = torch.arange(int(count_B.max()) if len(count_B) else 0)[None, :] < count_B[:, None]
    rewards_BS = torch.zeros(mask_BS.shape, dtype=torch.float64)
    for row, trajectory in enumerate(trajectories):
        for place, reward in _rewarded(trajectory):
            rewards_BS[row, place] = reward
    return (rewards_BS if penalties is None else rewards_BS - _rows(trajectories, penalties)), mask_BS


def _rewarded(trajectory: Trajectory) -> list[tuple[int, float]]:
    """Places of rewards among the sampled tokens: the last token of each call.

    What a call earned that is not trained goes to the trained one before it; before the first, nothing trained has
    earned it.
    """
    spans = [span for _, span in trajectory.in_time()]
    ends = list(accumulate(span.num_tokens for span in spans))
    starts_after = [span.turn for span in spans[1:]]
    earned = trajectory.earned
    if not spans:
        return []
    if not trajectory.rollout.turn_rewards:
        return [(ends[-1] - 1, trajectory.reward)]
    return [
        (end - 1, sum(earned[span.turn : upto]))
        for span, end, upto in zip(spans, ends, [*starts_after, len(earned)], strict=True)
    ]


def _rows(trajectories: Sequence[Trajectory], values: Penalties) -> Tensor:
    """The values of the sampled tokens of each rollout in a row, 0 behind them."""
    rows = []
    for trajectory, of_sequences in zip(trajectories, values, strict=True):
        found = {id(each): value for each, value in zip(trajectory.sequences, of_sequences, strict=True)}
        pieces = [found[id(sequence)][span.start : span.stop] for sequence, span in trajectory.in_time()]
        rows.append(torch.cat(pieces).double() if pieces else torch.zeros(0, dtype=torch.float64))
    return pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 0, dtype=torch.float64)


def _laid(
    trajectories: Sequence[Trajectory], advantages_BS: Tensor, returns_BS: Tensor | None, *, has_spread: bool
) -> list[list[Laid]]:
    """Back on the tokens of each sequence."""
    found = []
    for row, trajectory in enumerate(trajectories):
        advantages = _on_sequences(trajectory, advantages_BS[row].tolist())
        if returns_BS is None:
            found.append([Laid(each, has_spread=has_spread) for each in advantages])
            continue
        returns = _on_sequences(trajectory, returns_BS[row].tolist())
        found.append([Laid(*each, has_spread=has_spread) for each in zip(advantages, returns, strict=True)])
    return found


def _on_sequences(trajectory: Trajectory, row: list[float]) -> list[list[float]]:
    pieces: dict[int, list[tuple[TurnSpan, list[float]]]] = {id(each): [] for each in trajectory.sequences}
    place = 0
    for sequence, span in trajectory.in_time():
        pieces[id(sequence)].append((span, row[place : place + span.num_tokens]))
        place += span.num_tokens
    return [on_spans(len(each.sample), pieces[id(each)]) for each in trajectory.sequences]


# -- what a batch was like, in numbers ----------------------------------------------------------------


def batch_metrics(rollouts: Sequence[CollectedRollout]) -> dict[str, float]:
    """Rewards of the rollouts that count, how many do not and why, and lengths; without what nothing is known of."""
    calls = [each for each in rollouts if not each.is_lost]
    found = {
        "rollouts": float(len(rollouts)),
        "failed": float(sum(each.is_failed for each in rollouts)),
        "lost": float(sum(each.is_lost for each in rollouts)),
        "unrewarded": float(sum(each.is_unrewarded for each in rollouts)),
        "truncated": float(sum(each.truncated for each in calls)),
        "untokenised": float(sum(each.num_untokenised for each in calls)),
        "too_long": float(sum(each.num_too_long for each in calls)),
        "greedy": float(sum(each.num_greedy for each in calls)),
    }
    found |= _reward_metrics([each.reward for each in rollouts if each.counts and each.reward is not None])
    responses = list(chain.from_iterable(each.response_lengths for each in calls))
    if responses:
        found["response_length_mean"] = sum(responses) / len(responses)
        found["response_length_max"] = float(max(responses))
        found["prompt_length_mean"] = sum(map(sum, (each.prompt_lengths for each in calls))) / len(responses)
    if calls:
        found["turns_mean"] = sum(each.num_calls for each in calls) / len(calls)
    return found


def _reward_metrics(rewards: Sequence[float]) -> dict[str, float]:
    if not rewards:
        return {}
    mean = math.fsum(rewards) / len(rewards)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return {"reward_mean": mean, "reward_std": spread, "reward_min": min(rewards), "reward_max": max(rewards)}
