"""Spans: stored once, counted in order, found by what they are."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider

from sharpen.errors import UnknownIdError
from sharpen.types import Event, Link, OtelResource, Span, SpanContext, TraceStatus

from .scenes import claim_new, make_span, reward_span, run_new, status_of

# -- storing -----------------------------------------------------------------------------------------


async def test_a_span_comes_back_as_it_was_stored(store):
    claimed = await claim_new(store)
    span = Span(
        claimed.rollout_id, claimed.attempt.attempt_id, 5, "a" * 32, "b" * 16, "c" * 16, "chat",
        TraceStatus("ERROR", "refused"), {"text": "héllo\n☃", "ids": [1, 2], "on": True, "x": 0.1, "n": None},
        [Event("retry", {"n": 1}, 1.5)], [Link(SpanContext("d" * 32, "e" * 16, True), {"k": "v"})],
        1.25, 2.5, SpanContext("a" * 32, "b" * 16), SpanContext("a" * 32, "c" * 16), OtelResource({"service": "x"}),
    )  # fmt: skip
    assert await store.add_span(span) == span
    assert list(await store.query_spans(claimed.rollout_id)) == [span]


async def test_a_span_already_stored_is_skipped_and_comes_back_as_none(store):
    claimed = await claim_new(store)
    span = make_span(claimed, sequence_id=1)
    assert await store.add_span(span) == span
    assert await store.add_span(span) is None
    assert (await store.query_spans(claimed.rollout_id)).total == 1


async def test_a_span_is_known_again_whatever_stands_in_its_id(store):
    claimed = await claim_new(store)
    odd = make_span(claimed, name="odd", span_id="a\0b")
    await store.add_span(odd)
    again, other = await asyncio.gather(store.add_span(odd), store.add_span(make_span(claimed, span_id="a")))
    assert again is None
    assert other is not None
    assert [span.span_id for span in await store.query_spans(claimed.rollout_id)] == ["a\0b", "a"]


async def test_a_span_repeated_within_one_call_is_stored_once(store):
    claimed = await claim_new(store)
    first, second = make_span(claimed, sequence_id=1), make_span(claimed, sequence_id=2)
    assert await store.add_many_spans([first, second, first]) == [first, second, None]
    assert await store.add_many_spans([second, make_span(claimed, sequence_id=3)]) != [None, None]
    assert (await store.query_spans(claimed.rollout_id)).total == 3


async def test_a_span_named_by_its_attempt_and_by_latest_in_one_call_is_stored_once(store):
    claimed = await claim_new(store)
    span = make_span(claimed, sequence_id=1)
    assert await store.add_many_spans([span, replace(span, attempt_id="latest")]) == [span, None]
    assert (await store.query_spans(claimed.rollout_id)).total == 1


async def test_a_repeated_span_keeps_its_first_content_and_number(store):
    claimed = await claim_new(store)
    first = await store.add_span(make_span(claimed, span_id="s", trace_id="t", name="first"))
    again = make_span(claimed, span_id="s", trace_id="t", name="second")
    assert await store.add_span(again) is None
    assert list(await store.query_spans(claimed.rollout_id)) == [first]


async def test_the_same_span_of_another_attempt_is_another_span(store):
    first = await claim_new(store)
    second = await store.start_attempt(first.rollout_id)
    assert await store.add_span(make_span(first, span_id="s", trace_id="t")) is not None
    assert await store.add_span(make_span(second, span_id="s", trace_id="t")) is not None
    assert (await store.query_spans(first.rollout_id)).total == 2


async def test_spans_of_many_rollouts_are_stored_in_one_call(store):
    claims = [await claim_new(store) for _ in range(3)]
    spans = [make_span(claims[n % 3], name=str(n)) for n in range(9)]
    stored = await store.add_many_spans(spans)
    assert [span.name for span in stored] == [str(n) for n in range(9)]
    for n, claimed in enumerate(claims):
        found = await store.query_spans(claimed.rollout_id)
        assert [(span.name, span.sequence_id) for span in found] == [(str(n), 1), (str(n + 3), 2), (str(n + 6), 3)]


async def test_storing_no_spans_is_nothing(store):
    stored = await store.add_many_spans([])
    assert stored == []
    assert stored.unwanted == ()


async def test_a_span_of_an_unknown_rollout_or_attempt_is_refused(store):
    claimed = await claim_new(store)
    other = await claim_new(store)
    wrong = [
        Span("ro-unknown", claimed.attempt.attempt_id, 1, "t", "s"),
        Span(claimed.rollout_id, "at-unknown", 1, "t", "s"),
        Span(claimed.rollout_id, other.attempt.attempt_id, 1, "t", "s"),
    ]
    for span in wrong:
        with pytest.raises(ValueError) as caught:
            await store.add_span(span)
        assert isinstance(caught.value, UnknownIdError)


async def test_one_span_of_an_unknown_attempt_among_many_stores_none(store):
    claimed = await claim_new(store)
    wrong = Span(claimed.rollout_id, "at-unknown", 1, "t", "s")
    with pytest.raises(UnknownIdError):
        await store.add_many_spans([make_span(claimed), wrong, make_span(claimed)])
    assert (await store.query_spans(claimed.rollout_id)).total == 0
    assert await status_of(store, claimed) == ("preparing", "preparing")


async def test_the_first_span_makes_attempt_and_rollout_running(store, clock):
    claimed = await claim_new(store)
    clock.advance(3)
    await store.add_span(make_span(claimed))
    assert await status_of(store, claimed) == ("running", "running")
    assert (await store.get_latest_attempt(claimed.rollout_id)).last_heartbeat_time == clock.now


async def test_a_span_of_an_older_attempt_moves_only_that_attempt(store):
    old = await claim_new(store)
    await store.start_attempt(old.rollout_id)
    await store.add_span(make_span(old))
    assert await status_of(store, old) == ("preparing", "preparing")
    first, _ = await store.query_attempts(old.rollout_id)
    assert first.status == "running"


@pytest.mark.parametrize("final", ["succeeded", "failed", "cancelled"])
async def test_a_late_span_is_stored_and_changes_no_status(store, clock, final):
    claimed = await run_new(store)
    await store.update_rollout(claimed.rollout_id, status=final)
    before = await status_of(store, claimed)
    clock.advance(5)
    late = make_span(claimed, name="late")
    assert (await store.add_span(late)).name == "late"
    assert await status_of(store, claimed) == before
    assert [span.name for span in await store.query_spans(claimed.rollout_id, name="late")] == ["late"]


async def test_a_late_span_of_a_rollout_that_waits_again_is_counted_and_known(store):
    claimed = await claim_new(store, max_attempts=2, retry_condition=["failed"])
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
    late = reward_span(claimed, 0.5)
    assert (await store.add_span(late)).sequence_id == 1
    assert await store.add_span(late) is None
    assert (await store.add_span(make_span(claimed))).sequence_id == 2
    assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 0.5
    assert await status_of(store, claimed) == ("requeuing", "failed")


async def test_an_opentelemetry_span_is_stored_as_the_sdk_has_it(store):
    claimed = await claim_new(store)
    with TracerProvider().get_tracer("tests").start_as_current_span("chat", attributes={"ids": [1, 2]}) as live:
        pass
    span = await store.add_otel_span(claimed.rollout_id, claimed.attempt.attempt_id, live)
    assert (span.name, span.sequence_id, span.attributes) == ("chat", 1, {"ids": [1, 2]})
    assert span.span_id == f"{live.get_span_context().span_id:016x}"
    assert await store.add_otel_span(claimed.rollout_id, claimed.attempt.attempt_id, live) is None
    assert list(await store.query_spans(claimed.rollout_id)) == [span]


async def test_an_opentelemetry_span_takes_the_number_it_is_given(store):
    claimed = await claim_new(store)
    with TracerProvider().get_tracer("tests").start_as_current_span("chat") as live:
        pass
    span = await store.add_otel_span(claimed.rollout_id, claimed.attempt.attempt_id, live, sequence_id=7)
    assert span.sequence_id == 7
    assert await store.get_next_span_sequence_id(claimed.rollout_id, claimed.attempt.attempt_id) == 8


# -- attempts that nobody wants any more -------------------------------------------------------------


async def test_spans_of_a_wanted_attempt_name_nothing_unwanted(store):
    claimed = await claim_new(store)
    assert (await store.add_many_spans([make_span(claimed)])).unwanted == ()


async def test_the_answer_to_spans_names_attempts_that_nobody_waits_for(store):
    cancelled, requeued, superseded, finished, wanted = [await run_new(store) for _ in range(5)]
    await store.cancel_rollouts([cancelled.rollout_id])
    await store.start_attempt(superseded.rollout_id)
    await store.update_rollout(requeued.rollout_id, status="requeuing")
    await store.update_rollout(finished.rollout_id, status="failed")
    claims = [cancelled, requeued, superseded, finished, wanted]
    stored = await store.add_many_spans([make_span(claimed) for claimed in claims])
    assert all(stored)
    assert sorted(stored.unwanted) == sorted(claimed.attempt.attempt_id for claimed in claims[:4])


# -- numbers -----------------------------------------------------------------------------------------


async def test_sequence_ids_count_from_one_for_each_rollout(store):
    first, second = await claim_new(store), await claim_new(store)
    numbers = [await store.get_next_span_sequence_id(first.rollout_id, first.attempt.attempt_id) for _ in range(3)]
    assert numbers == [1, 2, 3]
    assert await store.get_next_span_sequence_id(second.rollout_id, second.attempt.attempt_id) == 1


async def test_the_attempts_of_a_rollout_share_one_counter(store):
    first = await claim_new(store)
    await store.get_next_span_sequence_id(first.rollout_id, first.attempt.attempt_id)
    second = await store.start_attempt(first.rollout_id)
    assert await store.get_next_span_sequence_id(second.rollout_id, second.attempt.attempt_id) == 2


async def test_many_numbers_are_given_in_one_call(store):
    first, second = await claim_new(store), await claim_new(store)
    a, b = (first.rollout_id, first.attempt.attempt_id), (second.rollout_id, second.attempt.attempt_id)
    assert await store.get_many_span_sequence_ids([a, b, a, a, b]) == [1, 1, 2, 3, 2]
    assert await store.get_many_span_sequence_ids([b, a]) == [3, 4]
    assert await store.get_many_span_sequence_ids([]) == []


async def test_numbers_given_to_callers_who_race_are_all_different(store):
    claimed = await claim_new(store)
    pair = (claimed.rollout_id, claimed.attempt.attempt_id)
    numbers = await asyncio.gather(*(store.get_next_span_sequence_id(*pair) for _ in range(30)))
    assert sorted(numbers) == list(range(1, 31))


async def test_a_span_with_a_higher_number_raises_the_counter(store):
    claimed = await claim_new(store)
    pair = (claimed.rollout_id, claimed.attempt.attempt_id)
    await store.add_span(make_span(claimed, sequence_id=10))
    assert await store.get_next_span_sequence_id(*pair) == 11


async def test_a_span_with_a_lower_number_leaves_the_counter(store):
    claimed = await claim_new(store)
    await store.add_span(make_span(claimed, sequence_id=10))
    await store.add_span(make_span(claimed, sequence_id=3))
    assert await store.get_next_span_sequence_id(claimed.rollout_id, claimed.attempt.attempt_id) == 11


async def test_a_span_without_a_number_gets_the_next_one(store):
    claimed = await claim_new(store)
    pair = (claimed.rollout_id, claimed.attempt.attempt_id)
    assert await store.get_next_span_sequence_id(*pair) == 1
    assert (await store.add_span(make_span(claimed))).sequence_id == 2
    stored = await store.add_many_spans([make_span(claimed), make_span(claimed, sequence_id=9), make_span(claimed)])
    assert [span.sequence_id for span in stored] == [3, 9, 10]
    assert [span.sequence_id for span in await store.query_spans(claimed.rollout_id)] == [2, 3, 9, 10]
    assert await store.get_next_span_sequence_id(*pair) == 11


async def test_a_repeated_span_uses_no_number(store):
    claimed = await claim_new(store)
    span = make_span(claimed)
    await store.add_span(span)
    await store.add_span(span)
    assert await store.get_next_span_sequence_id(claimed.rollout_id, claimed.attempt.attempt_id) == 2


async def test_no_number_is_given_for_unknown_ids(store):
    claimed, other = await claim_new(store), await claim_new(store)
    good = (claimed.rollout_id, claimed.attempt.attempt_id)
    wrong = [("ro-unknown", good[1]), (good[0], "at-unknown"), (good[0], other.attempt.attempt_id)]
    for pair in wrong:
        with pytest.raises(UnknownIdError):
            await store.get_next_span_sequence_id(*pair)
        with pytest.raises(UnknownIdError):
            await store.get_many_span_sequence_ids([good, pair])
    assert await store.get_next_span_sequence_id(*good) == 1


# -- querying ----------------------------------------------------------------------------------------


@pytest.fixture
async def traced(store):
    """Two attempts of one rollout: three spans of the first, two of the second."""
    first = await claim_new(store, max_attempts=2)
    rows = [("a", "t1", "s1", None, 5.0), ("chat", "t1", "s2", "s1", 4.0), ("chat.tool", "t1", "s3", "s2", 3.0)]
    second_rows = [("b", "t2", "s4", None, 2.0), ("chat", "t2", "s5", "s4", 1.0)]

    def spans(claimed, rows):
        return [
            make_span(claimed, name=name, trace_id=trace, span_id=span, parent_id=parent, start_time=start)
            for name, trace, span, parent, start in rows
        ]

    await store.add_many_spans(spans(first, rows))
    second = await store.start_attempt(first.rollout_id)
    await store.add_many_spans(spans(second, second_rows))
    return first, second


def ids(page):
    return [span.span_id for span in page]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["s1", "s2", "s3", "s4", "s5"]),
        ({"trace_id": "t1"}, ["s1", "s2", "s3"]),
        ({"trace_id_contains": "2"}, ["s4", "s5"]),
        ({"span_id": "s3"}, ["s3"]),
        ({"span_id_contains": "s"}, ["s1", "s2", "s3", "s4", "s5"]),
        ({"parent_id": "s1"}, ["s2"]),
        ({"parent_id_contains": "s"}, ["s2", "s3", "s5"]),
        ({"name": "chat"}, ["s2", "s5"]),
        ({"name_contains": "chat"}, ["s2", "s3", "s5"]),
        ({"name_contains": "%"}, []),
        ({"name_contains": "CHAT"}, []),
        ({"name": "chat", "trace_id": "t2"}, ["s5"]),
        ({"name": "chat", "parent_id": "s9"}, []),
        ({"name": "b", "span_id": "s1", "filter_logic": "or"}, ["s1", "s4"]),
        ({"name": "b", "trace_id_contains": "1", "filter_logic": "or"}, ["s1", "s2", "s3", "s4"]),
        ({"sort_order": "desc"}, ["s5", "s4", "s3", "s2", "s1"]),
        ({"sort_by": "start_time"}, ["s5", "s4", "s3", "s2", "s1"]),
        ({"sort_by": "start_time", "sort_order": "desc"}, ["s1", "s2", "s3", "s4", "s5"]),
    ],
    ids=str,
)
async def test_spans_are_filtered_and_sorted_in_the_store(store, traced, query, expected):
    page = await store.query_spans(traced[0].rollout_id, **query)
    assert ids(page) == expected
    assert page.total == len(expected)


async def test_spans_are_found_by_their_attempt(store, traced):
    first, second = traced
    rollout_id = first.rollout_id
    assert ids(await store.query_spans(rollout_id, first.attempt.attempt_id)) == ["s1", "s2", "s3"]
    assert ids(await store.query_spans(rollout_id, attempt_id=second.attempt.attempt_id)) == ["s4", "s5"]
    assert ids(await store.query_spans(rollout_id, "latest")) == ["s4", "s5"]
    assert ids(await store.query_spans(rollout_id, "latest", name="chat")) == ["s5"]


async def test_any_condition_is_still_within_the_attempt(store, traced):
    page = await store.query_spans(traced[0].rollout_id, "latest", name="a", span_id="s5", filter_logic="or")
    assert ids(page) == ["s5"]


@pytest.mark.parametrize(
    ("limit", "offset", "expected"), [(2, 0, ["s1", "s2"]), (2, 4, ["s5"]), (0, 0, []), (-1, 3, ["s4", "s5"])]
)
async def test_a_page_of_spans_knows_the_total(store, traced, limit, offset, expected):
    page = await store.query_spans(traced[0].rollout_id, limit=limit, offset=offset)
    assert ids(page) == expected
    assert (page.limit, page.offset, page.total) == (limit, offset, 5)


async def test_the_latest_attempt_of_a_waiting_rollout_has_no_spans(store):
    rollout = await store.enqueue_rollout("task")
    assert (await store.query_spans(rollout.rollout_id, "latest")).total == 0
    assert (await store.query_spans(rollout.rollout_id)).total == 0


async def test_a_large_span_is_stored_whole(store):
    claimed = await claim_new(store)
    span = make_span(claimed, sequence_id=1, attributes={"image": "x" * 300_000, "ids": list(range(5000))})
    await store.add_span(span)
    await store.add_span(msgspec.structs.replace(span, span_id="again", sequence_id=2))
    first, second = await store.query_spans(claimed.rollout_id)
    assert first == span
    assert second.attributes == span.attributes


async def test_what_is_unknown_has_no_spans(store):
    claimed = await run_new(store)
    for ids in (("ro-unknown",), ("ro-unknown", "latest"), (claimed.rollout_id, "at-unknown")):
        page = await store.query_spans(*ids)
        assert (list(page), page.total) == ([], 0)
