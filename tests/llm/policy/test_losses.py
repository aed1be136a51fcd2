"""Losses, against numbers worked by hand, plain loops, and numerical gradients."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import pytest
import torch
from torch import Tensor

from sharpen.errors import ConfigError, InvalidInputError
from tests.errors import raises
from tests.llm.internals import (
    Aggregation,
    Metrics,
    Totals,
    entropy_from_logits,
    importance_weights,
    kl_estimate,
    kl_loss,
    merge_metrics,
    policy_loss,
    value_loss,
)

from .numbers import F64, noise, random_mask, row

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
log = math.log


# -- policy loss -------------------------------------------------------------------------------------


def test_policy_loss_by_hand() -> None:
    # Ratios 1.5, 0.5, 1.5, 0.5, clipped to 0.8 .. 1.3:
    #   A = 2: -min(3, 2.6) = -2.6 (clipped above), -min(1, 1.6) = -1
    #   A = -2: -min(-3, -2.6) = 3, -min(-1, -1.6) = 1.6 (clipped below)
    logprobs, advantages = row(log(1.5), log(0.5), log(1.5), log(0.5)), row(2, 2, -2, -2)

    loss, metrics = policy_loss(logprobs, row(0, 0, 0, 0), advantages, torch.ones(1, 4), clip_low=0.2, clip_high=0.3)

    assert loss.item() == pytest.approx((-2.6 - 1 + 3 + 1.6) / 4)
    assert merge_metrics([metrics]) == pytest.approx(
        {
            "policy_loss": 0.25,
            "ratio": 1.0,
            "ratio_max": 1.5,
            "old_policy_kl": (0.5 - log(1.5) - 0.5 - log(0.5)) / 2,
            "clip_share_high": 0.25,
            "clip_share_low": 0.25,
        }
    )


def test_dual_clip_bounds_the_loss_of_bad_tokens_only() -> None:
    # A = -2 at a ratio of 9: 18 becomes 3 * 2. A = 2 at a ratio of 9: clipped to -2 * 1.2 as ever.
    logprobs, advantages = row(log(9), log(9)), row(-2, 2)

    loss, metrics = policy_loss(
        logprobs, row(0, 0), advantages, torch.ones(1, 2), clip_low=0.2, clip_high=0.2, dual_clip=3.0
    )

    assert loss.item() == pytest.approx((6 - 2.4) / 2)
    assert metrics["dual_clip_share"].item() == 0.5


def test_importance_weights_multiply_each_token_and_have_no_gradient() -> None:
    weights = row(0.5, 2).requires_grad_()
    loss, _ = policy_loss(
        row(-1, -1).requires_grad_(),
        row(-1, -1),
        row(1, 3),
        torch.ones(1, 2),
        clip_low=0.2,
        clip_high=0.2,
        importance_weights=weights,
    )

    assert loss.item() == pytest.approx(-(0.5 * 1 + 2 * 3) / 2)
    assert torch.autograd.grad(loss, weights, allow_unused=True) == (None,)


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    logprobs = noise(1, 2, 5).requires_grad_()
    advantages, mask = noise(2, 2, 5), random_mask(1, 2, 5)

    loss, _ = policy_loss(logprobs, logprobs.detach(), advantages, mask, clip_low=0.2, clip_high=0.2)
    (gradient,) = torch.autograd.grad(loss, logprobs)

    torch.testing.assert_close(gradient, torch.where(mask, -advantages, 0.0) / mask.sum())


def test_a_clipped_token_has_no_gradient() -> None:
    logprobs = row(log(1.5), log(0.5)).requires_grad_()

    loss, _ = policy_loss(logprobs, row(0, 0), row(1, -1), torch.ones(1, 2), clip_low=0.2, clip_high=0.2)

    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert gradient.eq(0).all()


def policy_loop(
    logprobs: list[float], old: list[float], advantages: list[float], weights: list[float], dual_clip: float | None
) -> list[float]:
    losses = []
    for new, before, advantage, weight in zip(logprobs, old, advantages, weights, strict=True):
        ratio = math.exp(new - before)
        loss = -min(ratio * advantage, min(max(ratio, 0.7), 1.4) * advantage)
        if dual_clip is not None and advantage < 0:
            loss = min(loss, -dual_clip * advantage)
        losses.append(weight * loss)
    return losses


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_policy_loss_agrees_with_a_loop(seed: int, dual_clip: float | None) -> None:
    logprobs, old, advantages = (noise(seed + 10 * k, 3, 6) for k in range(3))
    weights, mask = noise(seed + 40, 3, 6).exp(), random_mask(seed, 3, 6)

    loss, _ = policy_loss(
        logprobs,
        old,
        advantages,
        mask,
        clip_low=0.3,
        clip_high=0.4,
        dual_clip=dual_clip,
        importance_weights=weights,
    )

    chosen = [each[mask].tolist() for each in (logprobs, old, advantages, weights)]
    losses = policy_loop(chosen[0], chosen[1], chosen[2], chosen[3], dual_clip)
    assert loss.item() == pytest.approx(sum(losses) / len(losses))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_of_the_policy_loss_is_the_numerical_one(aggregation: Aggregation) -> None:
    logprobs, old, advantages, mask = noise(1, 2, 4), noise(2, 2, 4), noise(3, 2, 4), random_mask(2, 2, 4)

    def loss(each: Tensor) -> Tensor:
        options = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 2.0, "importance_weights": old.exp()}
        return policy_loss(each, old, advantages, mask, aggregation=aggregation, **options)[0]  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(loss, logprobs.requires_grad_())


# -- any loss ----------------------------------------------------------------------------------------

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Totals | None, Aggregation], tuple[Tensor, Metrics]]


def _policy(
    x: Tensor, y: Tensor, z: Tensor, mask: Tensor, totals: Totals | None, how: Aggregation
) -> tuple[Tensor, Metrics]:
    weights, weight_metrics = importance_weights(x, y, mask, cap=1.5, totals=totals)
    loss, metrics = policy_loss(
        x,
        y,
        z,
        mask,
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=1.5,
        aggregation=how,
        importance_weights=weights,
        totals=totals,
    )
    return loss, {**metrics, **weight_metrics}


def _by_sequence(
    x: Tensor, y: Tensor, z: Tensor, mask: Tensor, totals: Totals | None, how: Aggregation
) -> tuple[Tensor, Metrics]:
    weights, weight_metrics = importance_weights(x, y, mask, mode="sequence", cap=1.5, totals=totals)
    loss, metrics = policy_loss(
        x, y, z, mask, clip_low=0.2, clip_high=0.2, aggregation=how, importance_weights=weights, totals=totals
    )
    return loss, {**metrics, **weight_metrics}


def _kl(
    x: Tensor, y: Tensor, z: Tensor, mask: Tensor, totals: Totals | None, how: Aggregation
) -> tuple[Tensor, Metrics]:
    return kl_loss(x, y, mask, aggregation=how, totals=totals)


def _value(
    x: Tensor, y: Tensor, z: Tensor, mask: Tensor, totals: Totals | None, how: Aggregation
) -> tuple[Tensor, Metrics]:
    return value_loss(x, y, z, mask, clip=0.2, aggregation=how, totals=totals)


LOSSES = pytest.mark.parametrize("loss_of", [_policy, _by_sequence, _kl, _value])


@LOSSES
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_splitting_a_mini_batch_changes_neither_loss_nor_gradient_nor_metrics(
    loss_of: Loss, aggregation: Aggregation
) -> None:
    x, y, z = (noise(seed, 6, 5) for seed in range(3))
    mask = random_mask(3, 6, 5)
    mask[4] = False
    totals = Totals.of(mask)
    whole = x.clone().requires_grad_()
    whole_loss, whole_metrics = loss_of(whole, y, z, mask, None, aggregation)
    whole_loss.backward()  # type: ignore[no-untyped-call]

    split, losses, metrics = x.clone().requires_grad_(), [], []
    for part in ([3], [0, 5, 1], [4], [2]):
        loss, each = loss_of(split[part], y[part], z[part], mask[part], totals, aggregation)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        metrics.append(each)

    assert sum(losses) == pytest.approx(whole_loss.item())
    torch.testing.assert_close(split.grad, whole.grad)
    assert merge_metrics(metrics) == pytest.approx(merge_metrics([whole_metrics]))


@LOSSES
def test_what_stands_outside_the_mask_has_no_influence(loss_of: Loss) -> None:
    mask = random_mask(3, 3, 5)
    clean = [noise(seed, 3, 5) for seed in range(3)]
    dirty = [torch.where(mask, each, bad) for each, bad in zip(clean, (math.nan, math.inf, -math.inf), strict=True)]
    clean[0].requires_grad_()
    dirty[0].requires_grad_()

    results = []
    for x, y, z in (clean, dirty):
        loss, metrics = loss_of(x, y, z, mask, None, "token-mean")
        results.append((loss.item(), torch.autograd.grad(loss, x)[0], merge_metrics([metrics])))

    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]


@LOSSES
def test_only_the_first_tensor_has_a_gradient_and_metrics_have_none(loss_of: Loss) -> None:
    x, y, z = (noise(seed, 3, 5).requires_grad_() for seed in range(3))

    loss, metrics = loss_of(x, y, z, random_mask(3, 3, 5), None, "token-mean")
    gradients = torch.autograd.grad(loss, (x, y, z), allow_unused=True)

    assert gradients[0] is not None
    assert gradients[1:] == (None, None)
    assert not any(each.requires_grad for each in metrics.values())


@LOSSES
def test_a_mini_batch_without_a_trained_token_is_finite(loss_of: Loss) -> None:
    x, y, z = (noise(seed, 2, 3) for seed in range(3))

    loss, metrics = loss_of(x.requires_grad_(), y, z, torch.zeros(2, 3), None, "token-mean")

    assert loss.item() == 0
    assert all(math.isfinite(each) for each in merge_metrics([metrics]).values())
    assert torch.autograd.grad(loss, x)[0].eq(0).all()


def test_policies_that_are_far_apart_give_finite_numbers() -> None:
    far = torch.tensor([[-500.0, 0.0]], requires_grad=True)
    old, mask = torch.tensor([[0.0, -500.0]]), torch.ones(1, 2)

    loss, metrics = policy_loss(far, old, torch.tensor([[-1.0, -1.0]]), mask, clip_low=0.2, clip_high=0.2)
    weights, weight_metrics = importance_weights(far, old, mask, mode="sequence", cap=2.0)
    penalty, kl_metrics = kl_loss(far, old, mask)

    gradient = torch.autograd.grad(loss + penalty, far)[0]
    numbers = merge_metrics([metrics, weight_metrics, kl_metrics])
    assert torch.isfinite(gradient).all()
    assert torch.isfinite(weights).all()
    assert all(math.isfinite(each) for each in numbers.values())


# -- importance --------------------------------------------------------------------------------------


def test_importance_weights_of_tokens_by_hand() -> None:
    # Ratios 3, 0.5 and 1; the last is outside the mask.
    weights, metrics = importance_weights(
        row(log(3), log(0.5), 0, 9), row(0, 0, 0, 0), torch.tensor([[1, 1, 1, 0]]), mode="token", cap=2.0
    )

    torch.testing.assert_close(weights, row(2, 0.5, 1, 0))
    assert merge_metrics([metrics]) == pytest.approx(
        {"importance_ratio": 1.5, "importance_ratio_max": 3.0, "importance_capped_share": 1 / 3}
    )


def test_importance_weights_of_sequences_by_hand() -> None:
    # Products 3 * 0.5 = 1.5, and 4, which is cut to 2; the third row trains nothing.
    trainer = torch.tensor([[log(3), log(0.5), 9], [log(4), 9, 9], [9, 9, 9]], dtype=F64)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])

    weights, metrics = importance_weights(trainer, torch.zeros(3, 3, dtype=F64), mask, mode="sequence", cap=2.0)

    torch.testing.assert_close(weights, torch.tensor([[1.5, 1.5, 0], [2, 0, 0], [0, 0, 0]], dtype=F64))
    assert merge_metrics([metrics]) == pytest.approx(
        {"importance_ratio": 2.75, "importance_ratio_max": 4.0, "importance_capped_share": 0.5}
    )


@pytest.mark.parametrize("mode", ["token", "sequence"])
@pytest.mark.parametrize("seed", range(4))
def test_importance_weights_agree_with_a_loop(mode: Literal["token", "sequence"], seed: int) -> None:
    trainer, sampler, mask = noise(seed, 4, 5), noise(seed + 9, 4, 5), random_mask(seed, 4, 5)

    weights, _ = importance_weights(trainer, sampler, mask, mode=mode, cap=1.5)

    for b in range(4):
        differences = [float(trainer[b, t] - sampler[b, t]) if mask[b, t] else 0.0 for t in range(5)]
        for t in range(5):
            difference = sum(differences) if mode == "sequence" else differences[t]
            wanted = min(math.exp(difference), 1.5) if mask[b, t] else 0.0
            assert weights[b, t].item() == pytest.approx(wanted)


def test_a_sampler_that_agrees_has_weights_of_one() -> None:
    logprobs = noise(1, 2, 3)
    for mode in ("token", "sequence"):
        weights, metrics = importance_weights(logprobs, logprobs, torch.ones(2, 3), mode=mode, cap=2.0)
        assert weights.eq(1).all()
        assert metrics["importance_ratio"] == metrics["importance_ratio_max"] == 1


def test_importance_correction_makes_the_gradient_that_of_the_trainer() -> None:
    # Over all tokens of a vocabulary, weighted by how often the sampler draws them.
    logits, sampler_logits, advantages = noise(1, 4), noise(2, 4), noise(3, 4)
    sampler = sampler_logits.log_softmax(0)
    logits.requires_grad_()
    trainer = logits.log_softmax(0)

    weights, _ = importance_weights(trainer[None], sampler[None], torch.ones(1, 4), cap=100.0)
    loss, _ = policy_loss(
        trainer[None],
        trainer.detach()[None],
        (advantages * sampler.exp())[None],
        torch.ones(1, 4),
        clip_low=0.2,
        clip_high=0.2,
        aggregation="seq-mean-token-sum",
        importance_weights=weights,
    )
    (found,) = torch.autograd.grad(loss, logits)

    (wanted,) = torch.autograd.grad(-(logits.softmax(0) * advantages).sum(), logits)
    torch.testing.assert_close(found, wanted)


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"clip_low": -0.1}, ("clip_low", -0.1)),
        ({"clip_low": 1.5}, ("clip_low", 1.5)),
        ({"clip_high": -1.0}, ("clip_high", -1.0)),
        ({"clip_high": math.nan}, ("clip_high", "nan")),
        ({"dual_clip": 1.0}, ("dual_clip", 1.0)),
    ],
)
def test_clips_that_cannot_work_are_refused(options: dict[str, float], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        policy_loss(row(0), row(0), row(0), torch.ones(1, 1), **{"clip_low": 0.2, "clip_high": 0.2, **options})


def test_settings_that_cannot_work_are_refused() -> None:
    one = torch.ones(1, 1)
    with raises(ConfigError, "cap", 0.5):
        importance_weights(one, one, one, cap=0.5)
    with raises(ConfigError, "mode", "turn"):
        importance_weights(one, one, one, cap=2.0, mode="turn")  # type: ignore[arg-type]
    with raises(ConfigError, "k4", "k1", "k2", "k3"):
        kl_estimate(one, one, "k4")  # type: ignore[arg-type]
    with raises(ConfigError, "clip", 0):
        value_loss(one, one, one, one, clip=0)
    with raises(ConfigError, "chunk_size", 0):
        entropy_from_logits(one, chunk_size=0)


def test_advantages_per_sequence_are_not_broadcast() -> None:
    matrix = torch.zeros(2, 3)
    with raises(InvalidInputError, "(2, 1)", "(2, 3)"):
        policy_loss(matrix, matrix, torch.zeros(2, 1), matrix, clip_low=0.2, clip_high=0.2)
