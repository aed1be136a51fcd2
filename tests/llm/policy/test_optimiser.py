"""AdamW with float32 copies."""

import pytest
import torch
from torch import nn

from sharpen.errors import ConfigError
from sharpen.llm import TrainingError
from tests.errors import raises
from tests.llm.internals import Optimiser, Schedule


def weights(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(4, 3, generator=generator).to(dtype)) for name in ("a", "b")}


def add_gradients(given: dict[str, nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sum((each.float() * torch.randn(4, 3, generator=generator)).sum() for each in given.values()).backward()


def test_steps_are_those_of_adamw_with_clipping() -> None:
    ours, plain = weights(), weights()
    optimiser = Optimiser(ours, Schedule(1e-2, warmup_steps=2), weight_decay=0.1, grad_clip=0.5)
    adam = torch.optim.AdamW(plain.values(), weight_decay=0.1)
    for step in range(4):
        for given in (ours, plain):
            add_gradients(given, step)
        adam.param_groups[0]["lr"] = 5e-3 if step == 0 else 1e-2
        norm = torch.nn.utils.clip_grad_norm_(plain.values(), 0.5)
        adam.step()
        adam.zero_grad()
        metrics = optimiser.step()
        assert metrics["grad_norm"] == pytest.approx(norm.item())
        assert metrics["learning_rate"] == adam.param_groups[0]["lr"]
    for name in plain:
        torch.testing.assert_close(ours[name], plain[name])
    assert not optimiser.has_gradient


def test_small_steps_add_up_in_half_precision() -> None:
    coarse = weights(torch.bfloat16)
    before = {name: each.detach().clone() for name, each in coarse.items()}
    optimiser = Optimiser(coarse, Schedule(1e-4), weight_decay=0.0)
    for _ in range(60):  # each step alone is lost in the rounding of most weights
        coarse["a"].float().sum().backward()
        optimiser.step()
    moved = (before["a"] - coarse["a"]).float()
    assert moved.mean().item() == pytest.approx(60e-4, rel=0.2)
    assert torch.equal(coarse["b"], before["b"])


def test_gradients_in_half_precision_add_up_in_float32() -> None:
    coarse = {"a": nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))}
    optimiser = Optimiser(coarse, Schedule(0.0), grad_clip=None)
    for value in [1.0] + [1e-3] * 8:  # 1 + 0.001 is 1 in bfloat16
        (coarse["a"] * value).sum().backward()
    assert optimiser.step()["grad_norm"] == pytest.approx(1.008, abs=2e-4)


def test_a_gradient_that_is_no_number_changes_nothing() -> None:
    given = weights()
    optimiser = Optimiser(given, Schedule(1e-2))
    before = {name: each.detach().clone() for name, each in given.items()}
    (given["a"].sum() * float("nan")).backward()
    with raises(TrainingError, "nan", 1):
        optimiser.step()
    assert all(torch.equal(given[name], before[name]) for name in given)
    assert not optimiser.has_gradient
    assert optimiser.num_steps == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_state_goes_on_to_the_same_bits(dtype: torch.dtype) -> None:
    first, second = weights(dtype), weights(dtype)
    one, other = (Optimiser(each, Schedule(1e-2, warmup_steps=9)) for each in (first, second))
    for step in range(3):
        add_gradients(first, step)
        one.step()
    other.load_state({name: each.clone() for name, each in one.state().items()}, one.num_steps)
    for given, optimiser in ((first, one), (second, other)):
        add_gradients(given, 7)
        optimiser.step()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError):
        Optimiser({}, Schedule(1.0))
    with raises(ConfigError, "grad_clip", 0):
        Optimiser(weights(), Schedule(1.0), grad_clip=0)
    with raises(ConfigError, "betas"):
        Optimiser(weights(), Schedule(1.0), betas=(0.9, 1.0))
    with raises(ConfigError, "weight_decay", -1):
        Optimiser(weights(), Schedule(1.0), weight_decay=-1)
