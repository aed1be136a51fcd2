"""Server-sent events, however they are cut."""

import pytest
from hypothesis import given, strategies as st

from tests.chat.internals import EventStream

from ..llm_proxy.answers import pieces


def events_of(data, cuts=()):
    stream = EventStream()
    found = [event for piece in pieces(data, cuts) for event in stream.feed(piece)]
    return found, stream.end()


def test_the_data_of_each_event_is_handed_on_when_it_ends():
    stream = EventStream()
    assert stream.feed(b"data: 1\n") == []
    assert stream.feed(b"\ndata: 2\n\ndata") == [b"1", b"2"]
    assert stream.feed(b": 3\n\n") == [b"3"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_three_ways(end):
    data = end.join([b"data: 1", b"", b"data: 2", b"data: 3", b"", b""])
    assert events_of(data) == ([b"1", b"2\n3"], [])


def test_comments_names_and_ids_are_no_data():
    assert events_of(b": ping\n\nevent: x\nid: 3\nretry: 5\ndata: 1\n\nevent: y\n\n")[0] == [b"1"]


def test_only_one_space_after_the_colon_is_dropped():
    assert events_of(b"data:1\n\ndata: 2\n\ndata:  3\n\n")[0] == [b"1", b"2", b" 3"]


def test_data_on_several_lines_is_joined():
    assert events_of(b'data: {"a":\ndata: 1}\n\n')[0] == [b'{"a":\n1}']


def test_a_byte_order_mark_at_the_beginning_is_dropped():
    assert events_of(b"\xef\xbb\xbfdata: 1\n\n")[0] == [b"1"]


def test_an_event_without_its_blank_line_comes_at_the_end():
    assert events_of(b"data: 1\n\ndata: [DONE]") == ([b"1"], [b"[DONE]"])
    assert events_of(b"data: 1\n\ndata: [DONE]\n") == ([b"1"], [b"[DONE]"])
    assert events_of(b"") == ([], [])


@given(
    st.lists(st.sampled_from([b"data: a", b"data:b", b": c", b"event: d", b"", b"", b"data: \xc3\xa9"]), max_size=20),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 400), max_size=30),
)
def test_any_cut_gives_the_same_events(lines, end, cuts):
    data = b"".join(line + end for line in lines)
    assert events_of(data, cuts) == events_of(data) == events_of(data, range(len(data)))


def test_a_long_line_in_many_pieces_takes_time_in_proportion():
    stream = EventStream()
    for _ in range(50_000):
        stream.feed(b"data: ")
    assert stream.feed(b"\n\n") == [b"data: " * 49_999]
