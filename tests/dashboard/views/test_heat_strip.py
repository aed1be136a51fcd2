"""Token strips."""

import math

from tests.archive.internals import TokenStrip
from tests.dashboard.internals import heat_strip


def test_a_less_likely_token_has_a_darker_shade() -> None:
    strip = heat_strip(TokenStrip([1, 2], [5, 6, 7, 8], [0.0, -0.5, -20.0, None], ["a", " ", "\n", "b"], "3"))
    assert [cell.shade for cell in strip.cells] == [0, 3, 7, None]
    assert [cell.text for cell in strip.cells] == ["a", "␣", "↵", "b"]
    assert strip.cells[2].ends_line
    assert strip.cells[1].label == "token 6, “␣”, log-probability -0.5000, 60.7 %"
    assert strip.num_prompt == 2
    assert strip.weights_version == "3"
    assert strip.lowest == -20.0


def test_odd_numbers_and_missing_ids_are_shown() -> None:
    strip = heat_strip(TokenStrip([], [], [math.nan, -math.inf, 2.0]))
    assert [cell.shade for cell in strip.cells] == [None, 7, 0]
    assert strip.cells[1].probability == "0 %"
    assert heat_strip(TokenStrip([], [], [-5000.0])).perplexity is None


def test_a_long_strip_comes_in_pieces() -> None:
    tokens = TokenStrip([], list(range(5000)), [None] * 5000)
    assert heat_strip(tokens).next_first == 2000
    assert heat_strip(tokens, first=4000).next_first is None
