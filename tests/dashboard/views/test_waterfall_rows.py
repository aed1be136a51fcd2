"""Rows of the waterfall."""

from tests.archive.internals import Bar, Waterfall
from tests.dashboard.internals import waterfall_rows


def _bar(number: int, depth: int, start: float, end: float) -> Bar:
    return Bar(str(number), None, depth, f"bar {number}", "span", start, end, False, None)


def test_each_row_knows_how_many_stand_below_it() -> None:
    bars = [_bar(number, depth, 0, 1) for number, depth in enumerate((0, 1, 2, 1, 0, 1))]
    assert [row.num_below for row in waterfall_rows(Waterfall(0, 1, bars)).rows] == [3, 1, 0, 0, 1, 0]


def test_bars_stay_within_the_width_and_short_ones_are_points() -> None:
    bars = [_bar(0, 0, 0, 100), _bar(1, 40, 99.99, 200), _bar(2, 1, 50, 50), _bar(3, 1, -5, 10)]
    rows = waterfall_rows(Waterfall(0, 100, bars)).rows
    assert (rows[0].x, rows[0].width) == ("0.00%", "100.00%")
    assert rows[1].width is None
    assert rows[2].width is None
    assert rows[1].indent == 12
    assert rows[3].x == "0.00%"


def test_a_waterfall_without_length_or_with_many_rows_is_drawn() -> None:
    assert waterfall_rows(Waterfall(5, 5, [_bar(0, 0, 5, 5)])).ticks[0].label == "0"
    many = waterfall_rows(Waterfall(0, 1, [_bar(n, 0, 0, 1) for n in range(50)]), most=10)
    assert len(many.rows) == 10
    assert many.is_cut
    assert many.total == 50
