"""Answers of upstreams as bytes, and what a reading makes of them."""

import itertools
import json

from hypothesis import strategies as st

from tests.llm_proxy.internals import reading_for

# Halves of characters are no JSON that may be sent.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
some_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
counts = st.integers(0, 2**31)
token_ids = st.integers(0, 200_000)
logprobs = st.floats(-50, 0, allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def sse(events, *, end="\n", named=False):
    """Events as a server sends them; strings are sent as they are."""
    lines = []
    for event in events:
        if named and isinstance(event, dict):
            lines.append(f"event: {event['type']}")
        data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        lines += [f"data: {data}", ""]
    return "".join(line + end for line in lines).encode()


def pieces(data, cuts):
    """Bytes cut at the given places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def read_stream(api, data, *, cuts=(), is_complete=True, **more):
    reading = reading_for(api, "text/event-stream; charset=utf-8", **more)
    for piece in pieces(data, cuts):
        reading.feed(piece)
    return reading.finish(is_complete)


def read_events(api, events, **more):
    return read_stream(api, sse(events), **more)


def read_whole(api, body, *, is_complete=True, **more):
    reading = reading_for(api, "application/json", **more)
    reading.feed(body if isinstance(body, bytes) else json.dumps(body).encode())
    return reading.finish(is_complete)


def parts_of(said, choice=0):
    return said.output_messages[choice]["parts"]
