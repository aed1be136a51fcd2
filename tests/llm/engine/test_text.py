"""Text from tokens: whole characters, and stop strings wherever they fall."""

import itertools

import pytest

from tests.llm.internals import TextStream

from .tiny import EOS, Letters


def ids(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def read(stream: TextStream, token_ids: list[int]) -> list[str]:
    pieces = []
    for token_id in token_ids:
        pieces.append(stream.append(token_id))
        if stream.stopped_by is not None:
            break
    return pieces


def test_a_character_comes_when_its_last_byte_is_there() -> None:
    stream = TextStream(Letters())
    assert stream.read_eagerly() == ""
    assert read(stream, [0, 90, 91, 92, 1]) == ["a", "", "", "\u20ac", "b"]
    assert stream.text == "a\u20acb"


def test_bytes_that_never_become_a_character_come_at_the_end() -> None:
    stream = TextStream(Letters())
    stream.read_eagerly()
    assert read(stream, [0, 90]) == ["a", ""]
    assert stream.finish() == "\ufffd"
    assert stream.text == "a\ufffd"


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    stream = TextStream(Letters(), ("xyz",))
    assert read(stream, ids("axyaxyz")) == ["a", "", "", "xya", "", "", ""]
    assert (stream.text, stream.stopped_by) == ("axya", "xyz")


def test_held_back_text_comes_at_the_end() -> None:
    stream = TextStream(Letters(), ("xyz",))
    assert read(stream, ids("axy")) == ["a", "", ""]
    assert stream.finish() == "xy"


@pytest.mark.parametrize("stop", list(itertools.product(["ab", "ba", "aab", "b"], ["bb", "aaa", "abab"])))
def test_pieces_join_to_the_text_before_the_first_stop_string(stop: tuple[str, ...]) -> None:
    for letters in itertools.product("ab", repeat=6):
        whole = "".join(letters)
        stream = TextStream(Letters(), stop)
        pieces = [*read(stream, ids(whole)), stream.finish()]
        # The first moment at which some stop string is complete ends the text; the earliest start wins then.
        ends = [n for n in range(7) if any(each in whole[:n] for each in stop)]
        seen = whole[: ends[0]] if ends else whole
        cut = min((seen.find(each) for each in stop if each in seen), default=len(seen))
        assert "".join(pieces) == stream.text == seen[:cut]


def test_special_tokens_are_no_text_and_late_reading_gives_the_same() -> None:
    stream = TextStream(Letters())
    assert read(stream, [0, EOS, 1]) == ["", "", ""]
    assert stream.read_eagerly() == "ab"
    assert read(stream, [3]) == ["d"]
    assert stream.text == "abd"
