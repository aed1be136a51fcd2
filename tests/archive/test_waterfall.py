"""Waterfalls."""

import time
from typing import Any

from hypothesis import given, strategies as st

from sharpen.semconv import AGL_OPERATION, AGL_REWARD, PRIMARY_REWARD_VALUE, SHARPEN_LLM_CALL, LightningSpanAttributes
from sharpen.types import Span, TraceStatus
from tests.archive.internals import Bar, waterfall


def span(
    number: int, parent: int | None = None, *, at: float | None = None, to: float | None = None, **more: Any
) -> Span:
    parent_id = None if parent is None else f"{parent:016x}"
    return Span("ro-1", "at-1", number, "t" * 32, f"{number:016x}", parent_id, start_time=at, end_time=to, **more)


def places(bars: list[Bar]) -> list[tuple[int, int]]:
    return [(int(bar.span_id, 16), bar.depth) for bar in bars]


def test_parents_come_before_their_children_and_siblings_in_the_order_of_time() -> None:
    drawn = waterfall([span(3, 1, at=2, to=3), span(2, 1, at=1, to=2), span(4, 2, at=1, to=2), span(1, at=0, to=5)])
    assert places(drawn.bars) == [(1, 0), (2, 1), (4, 2), (3, 1)]
    assert (drawn.start, drawn.end) == (0, 5)
    assert drawn.bars[2].parent_id == f"{2:016x}"


def test_a_span_whose_parent_is_unknown_stands_at_the_top() -> None:
    drawn = waterfall([span(1, 99, at=1, to=2), span(2, 1, at=1, to=2)])
    assert places(drawn.bars) == [(1, 0), (2, 1)]
    assert drawn.bars[0].parent_id is None


def test_a_circle_of_parents_is_drawn_too() -> None:
    assert places(waterfall([span(1, 2, at=1, to=2), span(2, 1, at=2, to=3)]).bars) == [(1, 0), (2, 1)]


def test_times_that_are_missing_or_make_no_sense_are_mended() -> None:
    drawn = waterfall([span(1), span(2, at=10, to=5), span(3, at=11), span(4)])
    assert (drawn.start, drawn.end) == (10, 11)
    assert all(drawn.start <= bar.start <= bar.end <= drawn.end for bar in drawn.bars)


def test_no_spans_make_no_bars() -> None:
    assert waterfall([]).bars == []


def test_a_bar_says_what_its_span_is() -> None:
    named = {LightningSpanAttributes.OPERATION_NAME.value: "look up"}
    drawn = waterfall(
        [
            span(1, at=1, name=SHARPEN_LLM_CALL, status=TraceStatus("ERROR", "no")),
            span(2, at=2, name=AGL_REWARD, attributes={PRIMARY_REWARD_VALUE: 0.5}),
            span(3, at=3, name=AGL_OPERATION, attributes=named),
            span(4, at=4, name="graph"),
        ]
    )
    assert [(bar.name, bar.kind) for bar in drawn.bars] == [
        (SHARPEN_LLM_CALL, "call"),
        (AGL_REWARD, "reward"),
        ("look up", "operation"),
        ("graph", "span"),
    ]
    assert [bar.is_error for bar in drawn.bars] == [True, False, False, False]
    assert drawn.bars[1].reward == 0.5


times = st.none() | st.floats(0, 100)
drawn_spans = st.lists(st.tuples(st.integers(1, 12), st.none() | st.integers(1, 14), times, times), max_size=12)


@given(drawn_spans)
def test_every_span_has_one_bar_within_the_whole(
    given_spans: list[tuple[int, int | None, float | None, float | None]],
) -> None:
    spans = [span(number, parent, at=at, to=to) for number, parent, at, to in given_spans]
    drawn = waterfall(spans)
    assert sorted(bar.span_id for bar in drawn.bars) == sorted({each.span_id for each in spans})
    assert all(drawn.start <= bar.start <= bar.end <= drawn.end for bar in drawn.bars)
    seen: dict[str, int] = {}
    for bar in drawn.bars:
        assert bar.depth == (0 if bar.parent_id is None else seen[bar.parent_id] + 1)
        seen[bar.span_id] = bar.depth


def test_two_thousand_spans_are_laid_out_in_a_moment() -> None:
    deep = [span(number, number - 1 or None, at=float(number), to=5000.0) for number in range(1, 1001)]
    wide = [span(number, 1, at=float(number), to=number + 1.0) for number in range(1001, 2001)]
    start = time.process_time()
    assert len(waterfall(deep + wide).bars) == 2000
    assert time.process_time() - start < 0.5
