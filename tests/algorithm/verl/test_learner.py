"""How a batch of rollouts becomes updates."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.algorithm.internals import CollectedRollout, Groups, Learner, read_config
from tests.llm.internals import LocalPolicy, Turn, merge_turns
from tests.llm.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def rollouts(policy: LocalPolicy, rewards: Sequence[Sequence[float]], *, off_by: float = 0.0) -> list[CollectedRollout]:
    """Groups with these rewards, of two sampled tokens each; the sampler is off by so many nats."""
    found = []
    for group, of_group in enumerate(rewards):
        for number, reward in enumerate(of_group):
            ids = [5, 6, 7 + group, 20 + number, 30 + group]
            (exact,) = policy.logprobs([ids])
            turn = Turn(ids[:3], ids[3:], (exact[3:] - off_by).tolist())
            name = f"g{group}"
            samples = merge_turns([turn], rollout_id=f"{name}-{number}", group=name, reward=reward)
            found.append(
                CollectedRollout(
                    rollout_id=f"{name}-{number}", group=name, reward=reward, samples=samples, temperatures=(1.0,)
                )
            )
    return found


def learned(tiny: Path, rewards: Sequence[Sequence[float]], *, off_by: float = 0.0, **config: Any) -> dict[str, float]:
    policy = LocalPolicy(tiny, learning_rate=1e-4)
    keys = {name.replace("__", "."): value for name, value in config.items()}
    learner = Learner(read_config(keys), policy, None, seed=1)
    return learner.learn(rollouts(policy, rewards, off_by=off_by), step=0)


MIXED, FLAT = [0.0, 1.0], [1.0, 1.0]


def test_a_group_without_spread_is_part_of_the_mean(tiny: Path) -> None:
    """Its tokens count, as they do where a tiny entropy term keeps them in the loss."""
    alone = learned(tiny, [MIXED])
    beside = learned(tiny, [MIXED, FLAT, FLAT, FLAT])
    kept = learned(tiny, [MIXED, FLAT, FLAT, FLAT], actor_rollout_ref__actor__entropy_coeff=1e-12)
    assert beside["grad_norm"] == pytest.approx(alone["grad_norm"] / 4, rel=1e-4)
    assert beside["grad_norm"] == pytest.approx(kept["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("rewards", [[MIXED, MIXED], [MIXED, FLAT]])
def test_the_sampler_is_corrected_for_whatever_groups_are_flat(rewards: list[list[float]], tiny: Path) -> None:
    config: dict[str, Any] = {
        "algorithm__importance_correction": True,
        "actor_rollout_ref__actor__ppo_mini_batch_size": 1,
    }
    found = learned(tiny, rewards, off_by=0.5, **config)
    assert found["importance_ratio"] == pytest.approx(1.6487, rel=1e-2)


def test_mini_batches_are_as_equal_as_they_can_be() -> None:
    groups = Groups([CollectedRollout(rollout_id=f"{n}", group=f"g{n}", reward=0.0) for n in range(9)])
    parts = list(groups.split(4, random.Random(0)))
    assert sorted(map(len, parts)) == [3, 3, 3]
    assert frozenset().union(*parts) == {f"g{n}" for n in range(9)}


def test_what_was_lost_is_in_no_group() -> None:
    lost = CollectedRollout(rollout_id="a", group="g", reward=None, is_lost=True)
    assert len(Groups([lost])) == 0
    assert list(Groups([lost]).split(4, random.Random(0))) == []
