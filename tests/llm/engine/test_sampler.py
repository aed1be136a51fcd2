"""Drawing tokens: the right distribution, the right log-probabilities, row by row."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tests.llm.internals import (
    Mode,
    SamplerSettings as Settings,
    draw,
    engine_sampler as sampler,
    sample_seed,
    uniforms,
)

torch.set_num_threads(1)


def settings(rows: int, uniform: Tensor, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Settings:
    def same(value: float) -> Tensor:
        return torch.full((rows,), value, dtype=torch.float64)

    return Settings(same(temperature), same(top_p), torch.full((rows,), top_k), uniform)


def drawn(logits: Tensor, given: Settings, *, num_top: int = 0) -> tuple[list[int], Tensor, Tensor]:
    temperature = given.temperature
    mode = Mode(
        has_greedy=bool((temperature == 0).any()),
        has_sampled=bool((temperature != 0).any()),
        has_temperature=bool(((temperature != 0) & (temperature != 1)).any()),
        has_filter=bool((given.top_p < 1).any() or (given.top_k > 0).any()),
        num_top=num_top,
    )
    ids, packed = draw(logits, given, mode)
    assert packed[0].tolist() == ids.tolist()
    return ids.tolist(), packed[1:2].view(torch.float32)[0], packed[2:3].view(torch.float32)[0]


def noise(count: int, seed: int = 0) -> Tensor:
    seeds = np.full(count, sample_seed(seed, 0), dtype=np.uint64)
    return torch.from_numpy(uniforms(seeds, np.arange(count, dtype=np.uint64)))


def warped(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """The distribution as transformers shapes it."""
    steps = [TemperatureLogitsWarper(temperature)]
    steps += [TopKLogitsWarper(top_k)] if top_k else []
    steps += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    return LogitsProcessorList(steps)(torch.zeros(1, 1, dtype=torch.long), logits).log_softmax(-1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 5, 0.8)])
def test_draws_follow_the_distribution(temperature: float, top_k: int, top_p: float) -> None:
    count = 10_000
    row = torch.randn(1, 9, generator=torch.Generator().manual_seed(3)) * 1.5
    given = settings(count, noise(count), temperature=temperature, top_k=top_k, top_p=top_p)
    ids, _, _ = drawn(row.expand(count, -1), given)
    expected = warped(row, temperature, top_k, top_p)[0].exp() * count
    seen = torch.bincount(torch.tensor(ids), minlength=9)
    possible = expected > 0
    assert seen[~possible].sum() == 0
    statistic = ((seen - expected) ** 2 / expected)[possible].sum().item()
    # The 99.9 % quantile of chi-square with up to 8 degrees of freedom is 26.1.
    assert statistic < 26.1


@pytest.mark.parametrize("vocab", [7, 512, 1_300, 4_096])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 0.9), (2.0, 40, 1.0), (1.0, 7, 0.5)]
)
def test_log_probabilities_are_those_of_the_shaped_and_of_the_plain_distribution(
    vocab: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(50, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    given = settings(50, noise(50), temperature=temperature, top_k=min(top_k, vocab), top_p=top_p)
    ids, shaped, plain = drawn(logits, given)
    chosen = torch.tensor(ids).unsqueeze(-1)
    expected = warped(logits, temperature, min(top_k, vocab), top_p).gather(-1, chosen).squeeze(-1)
    torch.testing.assert_close(shaped, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(plain, logits.log_softmax(-1).gather(-1, chosen).squeeze(-1), atol=1e-5, rtol=1e-5)


def test_a_row_gets_the_same_token_whatever_its_neighbours_ask_for() -> None:
    logits = torch.randn(4, 600, generator=torch.Generator().manual_seed(0))
    uniform = noise(4)
    alone = [drawn(logits[row : row + 1], settings(1, uniform[row : row + 1]))[0][0] for row in range(4)]
    mixed = settings(4, uniform)
    mixed.temperature[1], mixed.top_p[2], mixed.top_k[3] = 0.0, 0.3, 2
    ids, shaped, _ = drawn(logits, mixed)
    assert ids[0] == alone[0]
    assert ids[1] == logits[1].argmax().item()
    assert shaped[1] == 0.0
    assert ids[3] in logits[3].topk(2).indices.tolist()


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.999])
def test_looking_at_few_candidates_first_changes_nothing(monkeypatch: pytest.MonkeyPatch, top_p: float) -> None:
    logits = torch.randn(30, 300, generator=torch.Generator().manual_seed(1)) * 2
    given = settings(30, noise(30), top_p=top_p)
    given.top_k[::3] = 4
    given.top_k[1::3] = 60  # more than the candidates
    given.top_p[4] = 1.0
    whole = drawn(logits, given)
    monkeypatch.setattr(sampler, "_CANDIDATES", 20)
    few = drawn(logits, given)
    assert whole[0] == few[0]
    torch.testing.assert_close(whole[1], few[1])


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53, 0.5])
@pytest.mark.parametrize("shape", [lambda row: row, lambda row: row.flip(0)])
def test_no_token_of_probability_zero_is_drawn(uniform: float, shape: Callable[[Tensor], Tensor]) -> None:
    row = torch.full((1_030,), -math.inf)
    row[500:530] = torch.linspace(-3, 3, 30)
    logits = shape(row).unsqueeze(0)
    ids, shaped, plain = drawn(logits, settings(1, torch.tensor([uniform], dtype=torch.float64)))
    assert logits[0, ids[0]] > -math.inf
    assert math.isfinite(shaped.item())
    assert math.isfinite(plain.item())


@pytest.mark.parametrize("temperature", [1e-6, 1e-60])
def test_a_tiny_temperature_is_greedy_and_finite(temperature: float) -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(2)) * 10
    ids, shaped, _ = drawn(logits, settings(5, noise(5), temperature=temperature))
    assert ids == logits.argmax(-1).tolist()
    assert shaped.abs().max() < 1e-5


def test_the_likeliest_tokens_come_with_the_models_log_probabilities() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(4))
    mode = Mode(has_greedy=False, has_sampled=True, has_temperature=True, has_filter=False, num_top=4)
    _, packed = draw(logits, settings(3, noise(3), temperature=0.5), mode)
    values, indices = logits.log_softmax(-1).topk(4)
    assert packed[3:7].t().tolist() == indices.tolist()
    torch.testing.assert_close(packed[7:].view(torch.float32).t(), values)


def test_uniform_numbers_are_even_and_those_of_neighbouring_seeds_and_places_unrelated() -> None:
    places = np.arange(20_000, dtype=np.uint64)
    rows = [
        uniforms(np.full(20_000, sample_seed(seed, index), dtype=np.uint64), places)
        for seed in (0, 1)
        for index in (0, 1)
    ]
    for row in rows:
        counts = np.bincount((row * 20).astype(int), minlength=20)
        assert ((counts - 1_000) ** 2 / 1_000).sum() < 43.8  # 99.9 % of chi-square with 19 degrees of freedom
        assert abs(np.corrcoef(row[:-1], row[1:])[0, 1]) < 0.03
    assert np.abs(np.corrcoef(rows) - np.eye(4)).max() < 0.03
