"""How losses per token become one number, whole or in parts."""

from typing import get_args

import pytest
import torch

from sharpen.errors import ConfigError, InvalidInputError
from tests.errors import raises
from tests.llm.internals import Aggregation, Totals, aggregate, merge_metrics, sequence_share, token_share

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)

# Sums 6 and 4 over 3 and 1 tokens; the third row trains nothing.
LOSSES = torch.tensor([[1.0, 2.0, 3.0, 90.0], [70.0, 4.0, 80.0, 90.0], [50.0, 60.0, 70.0, 80.0]])
MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("aggregation", "wanted"),
    [
        ("token-mean", 10 / 4),
        ("seq-mean-token-sum", 10 / 2),
        ("seq-mean-token-mean", (2 + 4) / 2),
        ("seq-mean-token-sum-norm", 10 / 2 / 4),
    ],
)
def test_each_aggregation_by_hand(aggregation: Aggregation, wanted: float) -> None:
    assert aggregate(LOSSES, MASK, aggregation=aggregation).item() == pytest.approx(wanted)


def test_totals_count_trained_tokens_and_the_sequences_that_have_some() -> None:
    assert Totals.of(MASK) == Totals(tokens=4, sequences=2, width=4)


def loop(losses: torch.Tensor, mask: torch.Tensor, aggregation: Aggregation) -> float:
    rows = [[float(x) for x, m in zip(row, marks, strict=True) if m] for row, marks in zip(losses, mask, strict=True)]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if aggregation == "token-mean":
        tokens = [x for row in rows for x in row]
        return sum(tokens) / len(tokens)
    of_row = {
        "seq-mean-token-sum": sum,
        "seq-mean-token-mean": lambda row: sum(row) / len(row),
        "seq-mean-token-sum-norm": lambda row: sum(row) / losses.shape[1],
    }[aggregation]
    return sum(of_row(row) for row in rows) / len(rows)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_each_aggregation_agrees_with_a_loop(aggregation: Aggregation, density: float) -> None:
    random = torch.Generator().manual_seed(0)
    losses = torch.randn(5, 7, generator=random, dtype=torch.float64)
    mask = torch.rand(5, 7, generator=random) < density

    assert aggregate(losses, mask, aggregation=aggregation).item() == pytest.approx(loop(losses, mask, aggregation))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("parts", [[[0, 1, 2]], [[0], [1], [2]], [[2, 0], [1]]])
def test_parts_add_up_to_the_whole_also_when_each_has_its_own_width(
    aggregation: Aggregation, parts: list[list[int]]
) -> None:
    totals = Totals.of(MASK)
    # The first two positions hold all of row 1, so a micro-batch of its own is narrower.
    widths = [2 if part == [1] else 4 for part in parts]

    found = sum(
        aggregate(LOSSES[part, :width], MASK[part, :width], aggregation=aggregation, totals=totals).item()
        for part, width in zip(parts, widths, strict=True)
    )

    assert found == pytest.approx(aggregate(LOSSES, MASK, aggregation=aggregation).item())


def test_a_mini_batch_without_a_trained_token_has_the_loss_zero_and_a_gradient_of_zero() -> None:
    for aggregation in AGGREGATIONS:
        losses = torch.ones(2, 3, requires_grad=True)
        loss = aggregate(losses, torch.zeros(2, 3), aggregation=aggregation)
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.item() == 0
        assert losses.grad is not None
        assert losses.grad.eq(0).all()


def test_metrics_of_parts_merge_into_those_of_the_whole() -> None:
    totals = Totals.of(MASK)
    parts = [
        {
            "loss": token_share(LOSSES[[b]], MASK[[b]], totals),
            "length": sequence_share(MASK[[b]].sum(1).float(), MASK[[b]], totals),
            "loss_max": (LOSSES[b] * MASK[b]).max(),
        }
        for b in range(3)
    ]

    assert merge_metrics(parts) == pytest.approx({"loss": 2.5, "length": 2.0, "loss_max": 4.0})
    assert merge_metrics([]) == {}


def test_an_unknown_aggregation_is_refused() -> None:
    with raises(ConfigError, "aggregation", "mean", "token-mean", "seq-mean-token-sum"):
        aggregate(LOSSES, MASK, aggregation="mean")  # type: ignore[arg-type]


def test_losses_per_row_are_refused() -> None:
    with raises(InvalidInputError, "losses_BT", "(3, 1)", "(3, 4)"):
        aggregate(LOSSES[:, :1], MASK)


def test_negative_totals_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        Totals(tokens=-1, sequences=0, width=0)
