"""KL, entropy and value losses, against numbers worked by hand, plain loops, and numerical gradients."""

import math
from typing import get_args

import pytest
import torch

from tests.llm.internals import KLKind, entropy_from_logits, kl_estimate, kl_loss, merge_metrics, value_loss

from .numbers import noise, random_mask, row

log = math.log


# -- KL ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wanted"), [("k1", [log(2), -log(2)]), ("k2", [log(2) ** 2 / 2] * 2), ("k3", [log(2) - 0.5, 1 - log(2)])]
)
def test_kl_estimates_by_hand(kind: KLKind, wanted: list[float]) -> None:
    # The policy gives the tokens 0.8 and 0.2, the reference 0.4 for both.
    found = kl_estimate(row(log(0.8), log(0.2)), row(log(0.4), log(0.4)), kind)

    torch.testing.assert_close(found, row(*wanted))


def test_k1_and_k3_are_the_kl_on_average_and_k3_is_never_negative() -> None:
    policy, reference = noise(1, 50).log_softmax(0), noise(2, 50).log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum().item()

    for kind in ("k1", "k3"):
        average = (policy.exp() * kl_estimate(policy, reference, kind)).sum().item()
        assert average == pytest.approx(exact)
    assert kl_estimate(policy, reference, "k3").ge(0).all()


def test_k2_as_a_loss_has_the_gradient_of_the_kl_and_k1_has_none_on_average() -> None:
    logits, reference = noise(1, 50).requires_grad_(), noise(2, 50).log_softmax(0)
    policy = logits.log_softmax(0)
    (wanted,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)

    for kind, expected in (("k2", wanted), ("k1", torch.zeros_like(wanted))):
        average = (policy.exp().detach() * kl_estimate(policy, reference, kind)).sum()
        (found,) = torch.autograd.grad(average, logits, retain_graph=True)
        torch.testing.assert_close(found, expected)


def test_kl_loss_by_hand() -> None:
    logprobs, ref = row(log(0.8), log(0.2), 5), row(log(0.4), log(0.4), 7)
    mask = torch.tensor([[1, 1, 0]])

    loss, metrics = kl_loss(logprobs, ref, mask, kind="k3", aggregation="seq-mean-token-sum")

    assert loss.item() == pytest.approx(0.5)
    assert merge_metrics([metrics]) == pytest.approx({"kl_loss": 0.5, "kl": 0.25})


@pytest.mark.parametrize("kind", get_args(KLKind))
def test_the_gradient_of_the_kl_loss_is_the_numerical_one(kind: KLKind) -> None:
    ref, mask = noise(2, 2, 4), random_mask(2, 2, 4)
    assert torch.autograd.gradcheck(lambda x: kl_loss(x, ref, mask, kind=kind)[0], noise(1, 2, 4).requires_grad_())


# -- entropy -----------------------------------------------------------------------------------------


def test_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf], [log(0.75), log(0.25), -math.inf], [5.0, -math.inf, -math.inf]])

    wanted = [log(2), -0.75 * log(0.75) - 0.25 * log(0.25), 0]
    assert entropy_from_logits(logits).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_chunks_change_neither_entropy_nor_gradient(chunk_size: int) -> None:
    logits = noise(1, 2, 5, 7, spread=2.0).requires_grad_()
    probabilities = logits.softmax(-1)
    wanted = -(probabilities * probabilities.log()).sum(-1)

    found = entropy_from_logits(logits, chunk_size=chunk_size)

    torch.testing.assert_close(found, wanted)
    weights = noise(2, 2, 5)
    gradients = [torch.autograd.grad((each * weights).sum(), logits, retain_graph=True)[0] for each in (found, wanted)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_gradient_of_the_entropy_is_the_numerical_one() -> None:
    assert torch.autograd.gradcheck(lambda x: entropy_from_logits(x, chunk_size=2), noise(1, 3, 4).requires_grad_())


def test_a_token_that_cannot_come_has_no_gradient() -> None:
    logits = torch.tensor([[0.3, 0.1, -math.inf]], requires_grad=True)

    (gradient,) = torch.autograd.grad(entropy_from_logits(logits).sum(), logits)

    assert torch.isfinite(gradient).all()
    assert gradient[0, 2] == 0


def test_entropy_of_half_precision_is_computed_in_float32() -> None:
    logits = noise(1, 4, 30).bfloat16()

    found = entropy_from_logits(logits)

    assert found.dtype == torch.float32
    torch.testing.assert_close(found, entropy_from_logits(logits.float()))


def test_entropy_of_nothing_is_nothing() -> None:
    assert entropy_from_logits(torch.zeros(0, 5)).shape == (0,)


# -- values ------------------------------------------------------------------------------------------


def test_value_loss_by_hand() -> None:
    # Old values 0, returns 1, clip 0.5. Value 0.8: near 0.5, so max(0.04, 0.25) / 2. Value -1: near -0.5, so
    # max(4, 2.25) / 2. Value 0.2: near itself, 0.64 / 2.
    values, old, returns, mask = row(0.8, -1, 0.2, 9), row(0, 0, 0, 9), row(1, 1, 1, 0), torch.tensor([[1, 1, 1, 0]])

    clipped, metrics = value_loss(values, old, returns, mask, clip=0.5)
    free, free_metrics = value_loss(values, old, returns, mask, clip=None)

    assert clipped.item() == pytest.approx((0.25 + 4 + 0.64) / 6)
    assert free.item() == pytest.approx((0.04 + 4 + 0.64) / 6)
    assert merge_metrics([metrics]) == pytest.approx({"value_loss": 4.89 / 6, "value": 0.0, "value_clip_share": 1 / 3})
    assert "value_clip_share" not in free_metrics


@pytest.mark.parametrize("seed", range(4))
def test_value_loss_agrees_with_a_loop(seed: int) -> None:
    values, old, returns = (noise(seed + 10 * k, 3, 5) for k in range(3))
    mask = random_mask(seed, 3, 5)

    loss, _ = value_loss(values, old, returns, mask, clip=0.3)

    errors = []
    for v, o, r in zip(values[mask].tolist(), old[mask].tolist(), returns[mask].tolist(), strict=True):
        near = min(max(v, o - 0.3), o + 0.3)
        errors.append(max((v - r) ** 2, (near - r) ** 2) / 2)
    assert loss.item() == pytest.approx(sum(errors) / len(errors))


def test_the_gradient_of_the_value_loss_is_the_numerical_one() -> None:
    old, returns, mask = noise(2, 2, 4), noise(3, 2, 4), random_mask(2, 2, 4)
    assert torch.autograd.gradcheck(
        lambda x: value_loss(x, old, returns, mask, clip=0.3)[0], noise(1, 2, 4).requires_grad_()
    )
