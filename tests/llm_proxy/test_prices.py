"""What calls cost."""

from dataclasses import dataclass
from typing import Any

import pytest

from sharpen import Price
from sharpen.errors import ConfigError
from tests.errors import raises
from tests.llm_proxy.internals import KNOWN, Prices, Usage

MILLION = Usage(1_000_000, 1_000_000)


@dataclass
class Entry:
    model: str | None = None
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None


def test_a_known_model_has_the_price_of_the_table() -> None:
    assert Prices().cost(MILLION, ["gpt-4o-mini"]) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "name", ["openai/gpt-4o", "gpt-4o-2024-08-06", "openai/gpt-4o-2024-08-06", "azure/eu/gpt-4o", "gpt-4o-latest"]
)
def test_a_provider_and_a_date_do_not_hide_the_price(name: str) -> None:
    assert Prices().of(name) == KNOWN["gpt-4o"]


def test_dates_of_anthropic_do_not_hide_the_price() -> None:
    assert Prices().of("claude-sonnet-4-5-20250929") == KNOWN["claude-sonnet-4-5"]
    assert Prices().of("claude-opus-4-0") == KNOWN["claude-opus-4"]


def test_a_longer_name_is_another_model() -> None:
    assert Prices().of("gpt-4o-audio-preview") is None
    assert Prices().of("ft:gpt-4o-mini-2024-07-18:team::id") is None


def test_an_unknown_model_has_no_cost() -> None:
    assert Prices().cost(MILLION, ["my-model", None, ""], Entry("Qwen/Qwen3-8B")) is None


def test_the_users_price_comes_before_the_known_one() -> None:
    prices = Prices({"gpt-4o": (1, 2), "mine": [0.5, 1.5]})
    assert prices.cost(MILLION, ["gpt-4o"]) == pytest.approx(3.0)
    assert prices.cost(MILLION, ["mine"]) == pytest.approx(2.0)


def test_the_price_of_an_entry_comes_before_all_others() -> None:
    entry = Entry("gpt-4o", input_cost_per_token=1e-6, output_cost_per_token=3e-6)
    assert Prices({"gpt-4o": (7, 7)}).cost(MILLION, ["gpt-4o"], entry) == pytest.approx(4.0)


def test_an_entry_that_is_free_costs_nothing() -> None:
    assert Prices().cost(MILLION, ["gpt-4o"], Entry("gpt-4o", 0.0, 0.0)) == 0.0


def test_the_name_at_the_upstream_is_looked_up_too() -> None:
    assert Prices().cost(MILLION, ["main"], Entry("gpt-4o-mini")) == pytest.approx(0.75)


def test_cached_input_has_its_own_price() -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=0, cached_tokens=400_000)
    assert Price(2.5, 10.0, 1.25).of(usage) == pytest.approx(0.6 * 2.5 + 0.4 * 1.25)
    assert Price(2.5, 10.0).of(usage) == pytest.approx(2.5)


def test_more_cached_than_input_tokens_never_make_a_negative_cost() -> None:
    assert Price(2.0, 8.0, 0.5).of(Usage(10, 0, cached_tokens=100)) == pytest.approx(10 * 0.5 / 1e6)


@pytest.mark.parametrize(
    "value", [(1,), (1, 2, 3, 4), "2.5", 3, (1, -2), (1, float("nan")), (True, 2), (1, 2, -1), None, {"input": 1}]
)
def test_a_wrong_price_is_refused_with_its_model(value: Any) -> None:
    with raises(ConfigError, "mine"):
        Prices({"mine": value})


def test_prices_that_are_no_dict_are_refused() -> None:
    with pytest.raises(ConfigError):
        Prices([("mine", 1, 2)])  # type: ignore[arg-type]
    with raises(ConfigError, 3):
        Prices({3: (1, 2)})  # type: ignore[dict-item]


def test_every_price_of_the_table_is_plausible() -> None:
    for name, price in KNOWN.items():
        assert 0 <= price.output <= 200, name
        assert 0 < price.input < 50, name
        assert price.cached_input is None or price.cached_input < price.input, name
