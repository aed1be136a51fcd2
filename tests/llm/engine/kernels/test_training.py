"""The parts that a trainer uses have the values and gradients of plain autograd; in Triton too, where it runs."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.llm.internals import kernels_training as training

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WAYS = [False, pytest.param(True, marks=pytest.mark.triton)]
torch.set_num_threads(1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(training, "are_fused", lambda device: request.param)
    return bool(request.param)


@pytest.mark.parametrize("shape", [(5, 3, 8), (2, 1, 12)])
def test_a_rotation(way: bool, shape: tuple[int, int, int]) -> None:
    x, cos, sin = (
        random(*shape).requires_grad_(),
        random(shape[0], shape[2], seed=1),
        random(shape[0], shape[2], seed=2),
    )
    toward = random(*shape, seed=3)
    expected = x * cos.unsqueeze(1) + torch.roll(x, shape[2] // 2, dims=-1) * sin.unsqueeze(1)
    (expected_grad,) = torch.autograd.grad(expected, x, toward)
    found = training.rotated(x, cos, sin)
    (grad,) = torch.autograd.grad(found, x, toward)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(grad, expected_grad)


def test_a_gate(way: bool) -> None:
    gate, up, toward = (random(7, 130, seed=each).requires_grad_() for each in range(3))
    expected = torch.autograd.grad(F.silu(gate) * up, (gate, up), toward)
    found = training.gated(gate, up)
    torch.testing.assert_close(found, F.silu(gate) * up)
    torch.testing.assert_close(torch.autograd.grad(found, (gate, up), toward), expected)


@pytest.mark.parametrize("has_delta", [False, True])
@pytest.mark.parametrize("num_rows", [3, 1500])
def test_a_sum_and_its_norm(way: bool, has_delta: bool, num_rows: int) -> None:
    if way and DEVICE == "cpu":
        num_rows = 3  # many rows take the interpreter long
    size = 24
    x, weight = random(num_rows, size).requires_grad_(), random(size, seed=1).requires_grad_()
    delta = random(num_rows, size, seed=2).requires_grad_() if has_delta else None
    toward = random(num_rows, size, seed=3), random(num_rows, size, seed=4)
    inputs = [each for each in (x, weight, delta) if each is not None]
    total = x if delta is None else x + delta
    expected = total, F.rms_norm(total, (size,), weight, 1e-5)
    expected_grads = torch.autograd.grad(expected, inputs, toward)
    found = training.add_norm(x, delta, weight, 1e-5)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, inputs, toward), expected_grads, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("vocab", [50, 5000])
def test_scores(way: bool, vocab: int) -> None:
    logits = (random(6, vocab) * 4).requires_grad_()
    targets, temperature = torch.arange(6, device=DEVICE) * 3, torch.tensor([1, 0.5, 2, 1, 1, 0.7], device=DEVICE)
    logprobs = (logits / temperature[:, None]).log_softmax(-1)
    expected, entropy = logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)
    toward = random(6, seed=5)
    (expected_grad,) = torch.autograd.grad(expected, logits, toward)
    plain = logits.detach().clone()
    found, found_entropy, log_total = training.scores(plain, targets, temperature)
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found_entropy, entropy.detach(), atol=1e-4, rtol=1e-5)
    grad = training.logits_gradient(plain, targets, temperature, log_total, toward)
    torch.testing.assert_close(grad, expected_grad, atol=1e-6, rtol=1e-4)


def test_a_sum_of_gradients(way: bool) -> None:
    total, part = random(40, 33), random(40, 33, seed=1).to(torch.float16)
    expected = total + part.float()
    training.add_to(total, part)
    torch.testing.assert_close(total, expected)
