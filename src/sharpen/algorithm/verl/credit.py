"""Credit: from the rewards of rollouts to an advantage on every sampled token.

`grpo` and `rloo` compare a rollout with the others of its group: whole rollouts where there is only a final reward, and
call by call in a group where an agent rewarded calls. `reinforce_plus_plus` and `gae` go along the trajectory of each
rollout, token by token, and compare with the whole batch.

A group without spread gives no gradient, and neither does a rollout that is alone in its group. Their samples are left
out, and counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ...errors import ConfigError, InvalidInputError
from ...llm.policy.advantages import Scale
from ...llm.policy.loss_settings import KLKind
from ...llm.policy.losses import kl_estimate
from ...llm.policy.samples import Sample
from ...llm.policy.training_sample import TrainingSample
from .collected import CollectedRollout
from .credit_metrics import batch_metrics
from .group_credit import GroupCredit, Penalties, compare
from .token_credit import gae_credit, reinforce_credit
from .trajectories import Laid, TrainingSequence, Trajectory, turn_spans

Estimator = Literal["grpo", "rloo", "reinforce_plus_plus", "gae"]
PerToken = Sequence[Sequence[float]]
"""For each sequence of the rollouts that were not lost, in their order, one number per token."""


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


def _group_metrics(groups: GroupCredit) -> dict[str, float]:
    return {
        "groups": float(groups.num_groups),
        "flat_groups": groups.num_flat / max(groups.num_groups, 1),
        "alone": float(sum(groups.is_alone)),
    }
