"""The tree of spans: order, parents, repair, drawing."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st

from sharpen.adapter import TracerTraceToTriplet
from sharpen.errors import ConfigError
from tests.adapter.internals import build_tree, repair_hierarchy, roots
from tests.errors import raises

from .traces import llm, operation, reward, scoring, span


def ids(nodes):
    return [node.span.span_id for node in nodes]


def parents(nodes):
    return {node.span.span_id: node.parent.span.span_id if node.parent else None for node in nodes}


def repaired(spans, *, may_adopt=lambda parent, child: True):
    nodes = build_tree(spans)
    repair_hierarchy(nodes, may_adopt=may_adopt)
    return parents(nodes)


def below(nodes):
    """All ids that the roots lead to, each as often as it is met."""
    waiting, found = roots(nodes), []
    while waiting:
        node = waiting.pop()
        found.append(node.span.span_id)
        waiting.extend(node.children)
    return found


# -- order -------------------------------------------------------------------------------------------


def test_spans_are_ordered_by_start_then_sequence_id():
    spans = [span("late", 3.0, number=1), span("second", 1.0, number=3), span("first", 1.0, number=2)]
    assert ids(build_tree(spans)) == ["first", "second", "late"]


def test_a_span_without_times_stands_where_its_number_puts_it():
    spans = [span("c", 3.0, number=3), span("b", number=2), span("a", 1.0, number=1), span("zero", number=0)]
    assert ids(build_tree(spans)) == ["zero", "a", "b", "c"]


def test_without_times_and_numbers_the_given_order_is_kept():
    assert ids(build_tree([span("b"), span("a"), span("c")])) == ["b", "a", "c"]


def test_an_end_before_the_start_makes_no_negative_interval():
    [node] = build_tree([span("a", 2.0, 1.0)])
    assert (node.start, node.end) == (2.0, 2.0)


# -- parents -----------------------------------------------------------------------------------------


def test_children_hang_below_their_parents_in_order():
    nodes = build_tree([span("b", 2.0, parent="root"), span("a", 1.0, parent="root"), span("root", 0.0, 3.0)])
    [root] = roots(nodes)
    assert ids(root.children) == ["a", "b"]


def test_an_unknown_parent_makes_a_root():
    nodes = build_tree([span("a", 1.0, parent="gone")])
    assert ids(roots(nodes)) == ["a"]
    assert nodes[0].is_orphan


def test_the_same_span_given_twice_is_one_node():
    assert ids(build_tree([span("a", 1.0), span("a", 1.0), span("b", 2.0, parent="a")])) == ["a", "b"]


def test_circles_lose_no_span():
    spans = [span("a", 1.0, parent="b"), span("b", 2.0, parent="a"), span("self", 3.0, parent="self")]
    nodes = build_tree([*spans, span("leaf", 4.0, parent="b")])
    assert ids(roots(nodes)) == ["a", "self"]
    assert sorted(below(nodes)) == ["a", "b", "leaf", "self"]


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 8)),
            st.floats(0, 9, allow_nan=False),
            st.floats(0, 3),
            st.sampled_from(["at-1", "at-2"]),
        ),
        max_size=9,
    )
)
def test_every_span_is_in_the_tree_exactly_once_before_and_after_repair(rows):
    spans = [
        span(str(number), start, start + length, parent=None if above is None else str(above), attempt=attempt)
        for number, (above, start, length, attempt) in enumerate(rows)
    ]
    nodes = build_tree(spans)
    assert sorted(below(nodes)) == sorted(s.span_id for s in spans)
    repair_hierarchy(nodes, may_adopt=lambda parent, child: True)
    assert sorted(below(nodes)) == sorted(s.span_id for s in spans)
    assert all(child.parent is node for node in nodes for child in node.children)


def test_a_deep_trace_needs_no_recursion():
    spans = [span(str(n), float(n), 5000.0, parent=str(n - 1) if n else None) for n in range(3000)]
    assert len(below(build_tree(spans))) == 3000
    assert TracerTraceToTriplet().visualize(spans).count("\n") == 2999


# -- repair ------------------------------------------------------------------------------------------


def test_a_span_whose_parent_is_missing_goes_below_the_innermost_span_around_it():
    spans = [span("outer", 0.0, 10.0), span("inner", 1.0, 5.0, parent="outer"), span("lost", 2.0, 3.0, parent="gone")]
    assert repaired(spans)["lost"] == "inner"


def test_a_lost_span_takes_what_is_below_it_along():
    spans = [span("outer", 0.0, 10.0), span("lost", 2.0, 4.0, parent="gone"), span("child", 3.0, 3.5, parent="lost")]
    assert repaired(spans) == {"outer": None, "lost": "outer", "child": "lost"}


def test_a_lost_span_in_nobodys_time_stays_a_root():
    assert repaired([span("outer", 0.0, 1.0), span("lost", 2.0, 3.0, parent="gone")])["lost"] is None


def test_siblings_without_children_are_sorted_into_each_other():
    spans = [span("a", 0.0, 10.0), span("b", 2.0, 5.0), span("c", 3.0, 4.0), span("d", 6.0, 7.0), span("e", 11.0)]
    assert repaired(spans) == {"a": None, "b": "a", "c": "b", "d": "a", "e": None}


def test_a_span_that_ends_with_its_parent_is_found_whatever_the_numbers_say():
    spans = [span("child", 0.0, 4.0, number=1), span("parent", 0.0, 5.0, number=2)]
    assert repaired(spans) == {"parent": None, "child": "parent"}


def test_a_sibling_stays_below_its_own_parent():
    spans = [span("a", 0.0, 10.0), span("other", 0.5, 9.0), span("child", 2.0, 3.0, parent="a")]
    assert repaired(spans)["child"] == "a"


def test_a_span_with_children_keeps_its_place():
    spans = [span("a", 0.0, 10.0), span("b", 1.0, 9.0), span("in-b", 2.0, 3.0, parent="b")]
    assert repaired(spans) == {"a": None, "b": None, "in-b": "b"}


def test_between_spans_that_ran_side_by_side_none_is_chosen():
    both = [span("left", 1.0, 6.0, parent="all"), span("right", 2.0, 8.0, parent="all"), span("all", 0.0, 10.0)]
    kids = [span("l", 1.5, parent="left"), span("r", 7.0, parent="right")]
    assert repaired([*both, *kids, span("lost", 3.0, 4.0, parent="gone")])["lost"] == "all"


def test_attempts_are_kept_apart():
    spans = [span("first", 0.0, 10.0), span("second", 1.0, 2.0, attempt="at-2")]
    assert repaired(spans)["second"] is None


def test_an_instant_adopts_nothing():
    assert repaired([span("a", 1.0), span("b", 1.0), span("c", 1.0)]) == {"a": None, "b": None, "c": None}


def test_missing_times_move_nothing():
    assert repaired([span("a"), span("b", parent="gone")]) == {"a": None, "b": None}
    assert all(node.start == -math.inf for node in build_tree([span("a"), span("b")]))


def test_the_last_word_is_the_callers():
    spans = [span("outer", 0.0, 10.0), span("inner", 1.0, 5.0), span("lost", 2.0, 3.0)]
    assert repaired(spans, may_adopt=lambda parent, child: parent.span.name != "inner")["lost"] == "outer"


# -- drawing -----------------------------------------------------------------------------------------

STORY = [
    operation("writer", 0.0, 2.0, error=True),
    llm("call", 0.5, 1.0, parent="writer"),
    scoring("judge", 3.0, 4.0, 0.5),
    llm("verdict", 3.1, 3.2, parent="judge"),
    reward(1.0, 5.0),
]


def test_the_drawing_shows_calls_rewards_times_and_errors():
    assert TracerTraceToTriplet().visualize(STORY).split("\n") == [
        "sharpen.operation  writer  2.000 s  ERROR",
        "└── chat small  [LLM call]  0.500 s",
        "sharpen.operation  judge  reward 0.5  1.000 s",
        "└── chat small  [LLM call]  0.100 s",
        "sharpen.reward  reward 1",
    ]


def test_branches_show_where_they_go_on():
    spans = [
        span("a", 0.0, 9.0),
        span("b", 1.0, 5.0, parent="a"),
        span("c", 2.0, parent="b"),
        span("d", 6.0, parent="a"),
    ]
    drawn = TracerTraceToTriplet().visualize(spans).replace("  9.000 s", "").replace("  4.000 s", "")
    assert drawn.split("\n") == ["a", "├── b", "│   └── c", "└── d"]


@pytest.mark.parametrize("name", ["tree", "tree.txt"])
def test_the_drawing_is_written_as_text(name, tmp_path):
    drawn = TracerTraceToTriplet().visualize(STORY, tmp_path / name)
    assert (tmp_path / "tree.txt").read_text(encoding="utf-8") == drawn + "\n"


def test_the_drawing_is_written_as_a_picture(tmp_path):
    spans = [*STORY, span('<b> & "quoted"\x00\n', 6.0)]
    drawn = TracerTraceToTriplet().visualize(spans, str(tmp_path / "tree.svg"))
    picture = ElementTree.parse(tmp_path / "tree.svg")
    shown = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert shown == drawn.split("\n")
    assert shown[-1].startswith('<b> & "quoted"')


def test_another_kind_of_file_is_refused(tmp_path):
    with raises(ConfigError, "tree.png", ".txt", ".svg"):
        TracerTraceToTriplet().visualize(STORY, tmp_path / "tree.png")


def test_an_empty_trace_draws_nothing(tmp_path):
    assert TracerTraceToTriplet().visualize([], tmp_path / "tree.svg") == ""
    ElementTree.parse(tmp_path / "tree.svg")
