"""Credit along a trajectory: what came after each sampled token, compared with the whole batch.

Axis letters: B rollouts with sampled tokens, S the sampled tokens of each in the order of time.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...llm.policy.advantages import gae_advantages, reinforce_plus_plus_advantages, whiten
from .group_credit import Penalties
from .trajectories import Laid, TrainingSequence, Trajectory, TurnSpan, on_spans


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
