"""The output layer in chunks: what torch gives in one piece, forward and backward."""

import pytest
import torch
from torch import Tensor

from tests.llm.internals import head_logprobs, policy_head as head

TARGETS = torch.tensor([3, 0, 10, 3, 7])
TEMPERATURES = torch.tensor([1.0, 0.5, 2.0, 1.0, 1.3])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_CPU_NUMBERS", 22)  # two tokens at a time


def tensors(*, is_head_trained: bool) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(*size, generator=generator) for size in ((5, 6), (11, 6), (11,)))
    return hidden.requires_grad_(), weight.requires_grad_(is_head_trained), bias.requires_grad_(is_head_trained)


def in_one_piece(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = ((hidden @ weight.t() + bias) / TEMPERATURES[:, None]).log_softmax(-1)
    return logprobs.gather(1, TARGETS[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("is_head_trained", [True, False])
@pytest.mark.parametrize("entropy_gradient", [True, False])
@pytest.mark.parametrize("is_fused", [True, False])
def test_values_and_gradients_are_those_of_one_piece(
    is_head_trained: bool, entropy_gradient: bool, is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "are_fused", lambda device: is_fused)
    ours, plain = (tensors(is_head_trained=is_head_trained) for _ in range(2))
    pull = torch.linspace(-1, 2, 5)
    for given, (logprobs, entropy) in (
        (ours, head_logprobs(*ours, TARGETS, TEMPERATURES, entropy_gradient=entropy_gradient)),
        (plain, in_one_piece(*plain)),
    ):
        torch.testing.assert_close(logprobs, in_one_piece(*plain)[0])
        torch.testing.assert_close(entropy, in_one_piece(*plain)[1])
        loss = (logprobs * pull).sum()
        if entropy_gradient:
            loss = loss + (entropy * pull.flip(0)).sum()
        loss.backward()
        assert given[0].grad is not None
    for mine, its in zip(ours, plain, strict=True):
        if its.grad is not None:
            torch.testing.assert_close(mine.grad, its.grad)


def test_without_gradients_nothing_is_kept() -> None:
    given = tensors(is_head_trained=True)
    with torch.no_grad():
        logprobs, entropy = head_logprobs(*given, TARGETS, TEMPERATURES)
    assert not logprobs.requires_grad
    assert not entropy.requires_grad
