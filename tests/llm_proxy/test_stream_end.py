"""The last event of a stream is found however the stream is cut."""

import pytest
from hypothesis import given, strategies as st

from sharpen.llm_proxy.calls import Api
from sharpen.llm_proxy.reading.stream_end import StreamEnd

STREAMS: dict[Api, tuple[bytes, bytes]] = {
    "chat": (b'data: {"text": "data: [DONE]"}\n\n: ping\n\ndata: {}\n\n', b"data: [DONE]\n\n"),
    "completions": (b'data: {"text": "x"}\r\n\r\n', b"data:[DONE]\r\n\r\n"),
    "messages": (
        b'event: content_block_delta\ndata: {"text": "event: message_stop"}\n\n',
        b'event: message_stop\ndata: {"type": "message_stop"}\n\n',
    ),
    "responses": (
        b'event: response.created\ndata: {"type": "response.created"}\n\n',
        b'event: response.completed\ndata: {"type": "response.completed", "response": {"usage": {}}}\n\n',
    ),
}


def _found(api: Api, pieces: list[bytes]) -> int | None:
    """How many bytes came before the last event, where it ended with the last piece and with none before."""
    end, seen = StreamEnd(api), 0
    for number, piece in enumerate(pieces):
        begin = end.find(piece)
        if begin is not None:
            assert number == len(pieces) - 1
            return seen + begin
        seen += len(piece)
    return None


@pytest.mark.parametrize("api", STREAMS)
def test_the_last_event_is_found_in_one_piece(api: Api) -> None:
    before, last = STREAMS[api]
    assert _found(api, [before + last]) == len(before)
    assert _found(api, [last]) == 0


@given(st.sampled_from(list(STREAMS)), st.data())
def test_the_last_event_is_found_in_any_pieces(api: Api, data: st.DataObject) -> None:
    before, last = STREAMS[api]
    whole = before + last
    # The last cut is before the blank line is whole, or the event would end in the piece before.
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole.rstrip())))))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    found = _found(api, pieces)
    assert found is not None
    assert found >= len(before)


@pytest.mark.parametrize("api", STREAMS)
def test_a_stream_without_its_end_has_none(api: Api) -> None:
    before, last = STREAMS[api]
    assert _found(api, [before, last.rstrip()]) is None


def test_an_api_that_does_not_stream_has_no_end() -> None:
    assert StreamEnd("embeddings").find(b"data: [DONE]\n\n") is None
