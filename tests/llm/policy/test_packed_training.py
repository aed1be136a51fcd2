"""From the turns of agents to a gradient, as training runs it: how sequences are packed and split changes nothing."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.algorithm.internals import CollectedRollout, Estimator, assign_credit
from tests.algorithm.verl.made_rollouts import call, collected
from tests.llm.internals import Aggregation, LocalOptions, LossSettings

from .scenes import policy

ALONE: LocalOptions = {"packs": False, "micro_batch_size": 1}
PACKED: list[LocalOptions] = [{"token_budget": 9}, {"token_budget": 1000}, {"packs": False, "micro_batch_size": 100}]


def rollouts() -> list[CollectedRollout]:
    """Two groups of two. Of the third rollout the second turn does not extend the first."""
    return [
        collected("0-0", 1.0, call([1, 2], [3, 4], reward=0.5), call([1, 2, 3, 4, 5], [6], reward=1.0)),
        collected("0-1", 0.0, call([1, 2], [7], reward=0.0), call([1, 2, 7, 8, 8], [9, 10, 1], reward=0.0)),
        collected("1-0", 1.0, call([3], [4, 5], reward=1.0), call([3, 5, 5], [2])),
        collected("1-1", 0.0, call([3], [4, 6], reward=0.0)),
    ]


def learned(
    folder: Path, split: LocalOptions, estimator: Estimator, aggregation: Aggregation
) -> tuple[dict[str, float], dict[str, Tensor]]:
    credit = assign_credit(rollouts(), estimator=estimator)
    made = policy(folder, **split)
    metrics = made.forward_backward(credit.samples, LossSettings(aggregation=aggregation, entropy_coef=0.01))
    return metrics, {name: each.grad for name, each in made.model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_packed_and_unpacked_losses_and_gradients_are_the_same(
    estimator: Estimator, aggregation: Aggregation, model_folder: Path
) -> None:
    wanted_metrics, wanted = learned(model_folder, ALONE, estimator, aggregation)

    assert wanted_metrics["policy_loss"] != 0
    for split in PACKED:
        metrics, found = learned(model_folder, split, estimator, aggregation)
        assert metrics == pytest.approx(wanted_metrics, rel=1e-4, abs=1e-5)
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)
