"""Credit relative to a group: the rollouts of one task are compared with each other.

What is compared is an entry: a whole rollout, or each of its calls in a group where an agent rewarded calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...llm.policy.advantages import GroupAdvantages, Scale, turn_advantages
from .trajectories import Laid, TrainingSequence, Trajectory, on_spans

Penalties = Sequence[Sequence[Tensor]]
"""For each sequence of each trajectory what is taken from the reward of each token."""


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
