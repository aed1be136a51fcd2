"""The last event of a stream is found however the stream is cut."""

import pytest
from hypothesis import given, strategies as st

from tests.llm_proxy.internals import Api, StreamEnd

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


def _found(api: Api, pieces: list[bytes]) -> tuple[bytes, bytes, bool]:
    """What may be passed on before the span is stored, what is held, and whether the last event is over."""
    end, passed, held = StreamEnd(api), b"", b""
    for piece in pieces:
        assert not end.is_over
        begin = end.find(piece)
        assert begin is not None or not held
        passed += piece if begin is None else piece[:begin]
        held += b"" if begin is None else piece[begin:]
    return passed, held, end.is_over


@pytest.mark.parametrize("api", STREAMS)
def test_the_last_event_is_found_in_one_piece(api: Api) -> None:
    before, last = STREAMS[api]
    assert _found(api, [before + last]) == (before, last, True)
    assert _found(api, [last]) == (b"", last, True)


@pytest.mark.parametrize("api", STREAMS)
def test_what_follows_the_last_event_in_its_piece_is_held_too(api: Api) -> None:
    before, last = STREAMS[api]
    assert _found(api, [before, last + b": bye\n"]) == (before, last + b": bye\n", True)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_the_mark_of_the_end_needs_no_blank_line(api: Api) -> None:
    assert _found(api, [b"data: {}\n\n", b"data: [DONE]\n"]) == (b"data: {}\n\n", b"data: [DONE]\n", True)
    assert _found(api, [b"data: {}\n\n", b"data: [DONE]"]) == (b"data: {}\n\n", b"data: [DONE]", False)


def test_a_mark_inside_a_text_is_none_wherever_the_pieces_are_cut() -> None:
    text = b'data: {"text": "' + b"data: [DONE] " * 9 + b'"}\n\n'
    for size in range(1, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert _found("chat", pieces) == (text, b"", False)


@given(st.sampled_from(list(STREAMS)), st.data())
def test_the_last_event_is_found_in_any_pieces(api: Api, data: st.DataObject) -> None:
    before, last = STREAMS[api]
    whole = before + last
    # The last cut is before the end of its line, or the event would end in the piece before.
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole.rstrip())))))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    passed, held, is_over = _found(api, pieces)
    assert is_over
    assert passed + held == whole
    assert len(before) <= len(passed) < len(whole.rstrip())


@pytest.mark.parametrize("api", STREAMS)
def test_a_stream_without_its_end_has_none(api: Api) -> None:
    before, last = STREAMS[api]
    assert _found(api, [before, last.rstrip()]) == (before, last.rstrip(), False)
    assert _found(api, [before]) == (before, b"", False)


def test_an_api_that_does_not_stream_has_no_end() -> None:
    assert StreamEnd("embeddings").find(b"data: [DONE]\n\n") is None
