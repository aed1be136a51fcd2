"""Policies on two processes of this machine."""

from pathlib import Path
from typing import Any, Unpack

from tests.llm.internals import LocalOptions, LocalPolicy, LossSettings, RankedPolicy, ShardedPolicy
from tests.llm.policy.scenes import random_samples

LOSS = LossSettings(entropy_coef=0.01, kl_coef=0.1)


def ranked(folder: Path, **options: Unpack[LocalOptions]) -> RankedPolicy:
    chosen: LocalOptions = {"learning_rate": 1e-3, **options}
    return RankedPolicy(folder, devices=["cpu", "cpu"], **chosen)


def sharded(folder: Path, num_ranks: int = 2, **options: Unpack[LocalOptions]) -> ShardedPolicy:
    chosen: LocalOptions = {"learning_rate": 1e-3, **options}
    return ShardedPolicy(folder, devices=["cpu"] * num_ranks, **chosen)


def local_bytes(policy: ShardedPolicy) -> tuple[int, int]:
    """What this rank holds of the weights, and what all hold."""
    parts: list[Any] = list(policy.model.parameters())
    return (
        sum(each.to_local().numel() * each.element_size() for each in parts),
        sum(each.numel() * each.element_size() for each in parts),
    )


def train(policy: LocalPolicy, seed: int) -> dict[str, float]:
    """A mini-batch in two calls, and an update."""
    samples = random_samples(seed, count=9)
    metrics = policy.forward_backward(samples, LOSS)
    policy.forward_backward(samples[:1], LOSS)
    return metrics | policy.optim_step()
