"""Text of agents, made fit to be shown."""

import math

from tests.dashboard.internals import as_json, as_words, clipped, one_line, short_id, signed, visible


def test_hidden_characters_are_spelt_out_and_joined_emoji_stay() -> None:
    assert visible("a\x1b[31m\u202eb\x00\r\n\tc") == "a\\x1b[31m\\u202eb\\x00\n\tc"
    assert visible("👩\u200d👧 e\u0301 中文") == "👩\u200d👧 e\u0301 中文"


def test_a_text_is_cut_only_where_that_saves_something() -> None:
    assert not clipped("x" * 120, 100).is_cut
    assert clipped("x" * 1000, 100).text == "x" * 100
    assert clipped("x" * 1000, 100).length == 1000
    assert one_line("a\n b" + "c" * 500, 10) == "a bcccccc" + "c…"


def test_json_of_anything_is_written() -> None:
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    assert "cannot be written" in as_json(deep)
    written = as_json({"n": [1, 2.5], "x": math.nan, "o": {1}, "inner": {"a": [{}]}})
    assert '"n": [1, 2.5]' in written
    assert '"x": NaN' in written
    assert '"o": "{1}"' in written


def test_tasks_and_ids_are_short_where_it_matters() -> None:
    assert as_words({"question": "what?", "n": [1]}) == "question: what? · n: [1]"
    assert as_words("plain") == "plain"
    assert as_words(None) == "null"
    assert as_words({}) == "{}"
    assert short_id("ro-f76285b5983a-s1-t5-7") == "ro-f7…b5983a-s1-t5-7"
    assert [signed(value) for value in (0.25, -0.5, 0.0)] == ["+0.250", "-0.500", "0"]
