"""Pages, triplets, data sets and the other answers of calls."""

from collections.abc import Sequence

import msgspec
import pytest

from sharpen.types import FinishedRollouts, PaginatedResult, Rollout, SizedDataset, Span, StoredSpans, Triplet


@pytest.fixture
def page():
    return PaginatedResult(items=["a", "b", "c"], limit=3, offset=2, total=9)


def test_a_page_is_a_sequence_of_its_items(page):
    assert isinstance(page, Sequence)
    assert len(page) == 3
    assert list(page) == ["a", "b", "c"]
    assert list(reversed(page)) == ["c", "b", "a"]
    assert "b" in page
    assert "z" not in page
    assert page.index("c") == 2
    assert page.count("a") == 1


def test_a_page_is_indexed_and_sliced_like_a_list(page):
    assert page[0] == "a"
    assert page[-1] == "c"
    assert page[1:] == ["b", "c"]
    with pytest.raises(IndexError):
        page[3]


def test_a_page_tells_where_it_stands_in_the_whole(page):
    assert (page.limit, page.offset, page.total) == (3, 2, 9)


def test_an_empty_page_is_false():
    assert not PaginatedResult(items=[], limit=-1, offset=0, total=0)


def test_a_page_comes_back_from_json_with_its_items_typed():
    page = PaginatedResult(items=[Rollout("ro-1", {"x": 1}, 0.5)], limit=1, offset=0, total=4)
    assert msgspec.json.decode(msgspec.json.encode(page), type=PaginatedResult[Rollout]) == page


def test_a_page_with_a_wrong_item_is_refused_by_its_path():
    body = b'{"items": [{"rollout_id": 1, "input": 0, "start_time": 0}], "limit": 1, "offset": 0, "total": 1}'
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=PaginatedResult[Rollout])


def test_finished_rollouts_carry_the_cursor_to_go_on_from():
    finished = FinishedRollouts([Rollout("ro-1", None, 0.0, status="succeeded")], cursor=7)
    assert msgspec.json.decode(msgspec.json.encode(finished), type=FinishedRollouts) == finished


def test_stored_spans_are_a_list_that_names_unwanted_attempts():
    span = Span("ro-1", "at-1", 1, "t", "s")
    stored = StoredSpans([span, None], unwanted=["at-1"])
    assert stored == [span, None]
    assert stored.unwanted == ("at-1",)
    assert StoredSpans().unwanted == ()


def test_a_triplet_needs_a_prompt_and_a_response():
    triplet = Triplet("6 * 7?", "42")
    assert (triplet.reward, triplet.metadata) == (None, {})
    assert msgspec.json.decode(msgspec.json.encode(triplet), type=Triplet) == triplet


def test_two_triplets_do_not_share_their_metadata():
    first, second = Triplet("p", "r"), Triplet("p", "r")
    first.metadata["seen"] = True
    assert second.metadata == {}


def test_lists_and_ranges_are_sized_data_sets_and_generators_are_not():
    assert isinstance([1, 2], SizedDataset)
    assert isinstance(range(3), SizedDataset)
    assert not isinstance((n for n in range(3)), SizedDataset)
