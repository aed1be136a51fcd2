"""A record keeps exchanges whole, through crashes, and for one gateway at a time."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sharpen.errors import ConfigError
from tests.errors import raises
from tests.llm_proxy.internals import (
    Exchange,
    RecordFile,
    Tape,
    WrittenRecord,
    exchange_attributes,
    exchange_in,
    key_of,
)

from .asked import HELLO, call_of, exchange_of, question

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
REQUESTS = st.dictionaries(st.text(), JSON, max_size=5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


def written(path: Path, *exchanges: Exchange) -> None:
    with RecordFile(path) as record:
        for exchange in exchanges:
            record.append(exchange)


# -- keys --------------------------------------------------------------------------------------------


def test_the_order_of_fields_does_not_change_the_key() -> None:
    one = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    other = {"messages": [{"content": "hi", "role": "user"}], "model": "m"}
    assert key_of("chat", one) == key_of("chat", other)


@pytest.mark.parametrize(
    "change", [{"stream": True}, {"user": "u"}, {"metadata": {"a": "b"}}, {"temperature": 0}, {"model": "other"}]
)
def test_every_field_that_the_agent_sent_counts(change: dict[str, Any]) -> None:
    assert key_of("chat", HELLO | change) != key_of("chat", HELLO)


def test_the_api_counts() -> None:
    assert key_of("chat", HELLO) != key_of("responses", HELLO)


@settings(deadline=None, max_examples=50)
@given(request=REQUESTS)
def test_the_key_is_that_of_the_parsed_body(request: dict[str, Any]) -> None:
    parsed = msgspec.json.decode(msgspec.json.encode(request))
    assert key_of("chat", parsed) == key_of("chat", request)


# -- lossless ----------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(request=REQUESTS, chunks=st.lists(st.binary(max_size=40)), status=st.integers(100, 599), whole=st.booleans())
def test_what_is_read_is_what_was_written(
    tmp_path: Path, request: dict[str, Any], chunks: list[bytes], status: int, whole: bool
) -> None:
    path = tmp_path / "record.jsonl"
    path.unlink(missing_ok=True)
    call = call_of(request, rollout_id="ro-1")
    exchange = exchange_of(call, chunks, status=status, is_complete=whole)
    written(path, exchange)
    (found,) = WrittenRecord(path)
    assert found == exchange
    assert found.request.encode() == call.body
    assert [data for _, data in found.chunks()] == chunks
    assert (found.status, found.is_complete) == (status, whole)


@settings(deadline=None)
@given(chunks=st.lists(st.binary(max_size=40)))
def test_a_span_holds_the_same_exchange(chunks: list[bytes]) -> None:
    exchange = exchange_of(call_of(rollout_id="ro-1"), chunks)
    attributes = msgspec.json.decode(msgspec.json.encode(exchange_attributes(exchange)))
    assert exchange_in(attributes, rollout_id="ro-1", attempt_id="at-1") == exchange


def test_the_agents_own_spelling_of_the_request_is_kept(path: Path) -> None:
    body = b' {"model":"m",\n "messages": [ ],\t"b":1.0}\r\n'
    written(path, exchange_of(call_of(msgspec.json.decode(body), body=body), [b"ok"]))
    (found,) = WrittenRecord(path)
    assert found.request.encode() == body


def test_chunks_carry_the_time_since_the_request() -> None:
    now = [100.0]
    tape = Tape(call_of(), clock=lambda: now[0])
    tape.begin(200, [])
    for seconds in (0.5, 1.0):
        now[0] += seconds
        tape.feed(b"data")
    (first, _), (second, _) = tape.exchange(is_complete=True).chunks()
    assert first == pytest.approx(0.5, abs=0.1)
    assert second - first == pytest.approx(1.0)


def test_after_a_retry_only_the_last_answer_is_kept() -> None:
    tape = Tape(call_of())
    tape.begin(500, [("content-type", "text/html")])
    tape.feed(b"oops")
    tape.begin(200, [("Content-Type", "application/json")])
    tape.feed(b"{}")
    exchange = tape.exchange(is_complete=True)
    assert (exchange.status, exchange.body, exchange.content_type) == (200, b"{}", "application/json")


def test_no_header_is_kept_but_what_is_needed_to_read_the_body(path: Path) -> None:
    written(path, exchange_of(call_of(), [b"ok"]))
    assert b"secret" not in path.read_bytes()
    (found,) = WrittenRecord(path)
    assert found.headers == [("content-type", "text/plain")]


def test_a_redacted_answer_comes_in_one_piece() -> None:
    attributes = exchange_attributes(exchange_of(call_of(), [b"my name", b" is Ann"]))
    attributes["sharpen.llm.exchange.response"] = "my name is ***!"
    found = exchange_in(attributes, rollout_id=None, attempt_id=None)
    assert found is not None
    assert list(found.chunks()) == [(0.0, b"my name is ***!")]


def test_attributes_that_lost_a_part_hold_no_exchange() -> None:
    attributes = exchange_attributes(exchange_of(call_of(), [b"ok"]))
    del attributes["sharpen.llm.exchange.request"]
    assert exchange_in(attributes, rollout_id=None, attempt_id=None) is None
    assert exchange_in({"gen_ai.request.model": "m"}, rollout_id="ro-1", attempt_id="at-1") is None


# -- the file ----------------------------------------------------------------------------------------


def test_a_record_is_gone_on_with(path: Path) -> None:
    first, second = (exchange_of(call_of(question(text)), [text.encode()]) for text in "ab")
    written(path, first)
    written(path, second)
    assert list(WrittenRecord(path)) == [first, second]


def test_each_line_is_there_for_others_at_once(path: Path) -> None:
    with RecordFile(path) as record:
        for count in (1, 2, 3):
            record.append(exchange_of(call_of(), [b"ok"]))
            assert len(WrittenRecord(path)) == count


def test_only_the_user_can_read_a_record(path: Path) -> None:
    written(path)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("size", [10, 200_000])
def test_a_torn_line_is_ignored_and_cut_off_at_every_place(path: Path, size: int) -> None:
    first, torn, third = (exchange_of(call_of(question(text)), [text.encode() * size]) for text in "abc")
    written(path, first)
    whole = path.read_bytes()
    written(path, torn)
    rest = path.read_bytes()[len(whole) :]
    for length in {1, 2, len(rest) // 2, len(rest) - 1}:
        path.write_bytes(whole + rest[:length])
        assert list(WrittenRecord(path)) == [first]
        written(path, third)
        assert list(WrittenRecord(path)) == [first, third]


def test_a_torn_first_line_is_written_again(path: Path) -> None:
    written(path)
    head = path.read_bytes()
    for length in range(len(head)):
        path.write_bytes(head[:length])
        written(path)
        assert path.read_bytes() == head


CHILD = """
import sys
from tests.llm_proxy.asked import call_of, exchange_of, question
from sharpen.llm_proxy.recording.record import RecordFile
record = RecordFile(sys.argv[1])
for number in range(10**9):
    record.append(exchange_of(call_of(question(str(number))), [b"x" * 5000]))
    print(number, flush=True)
"""


def test_a_killed_gateway_loses_no_exchange_that_ended(path: Path, repository: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=repository) as child:
        assert child.stdout is not None
        for _ in range(50):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        said = 50 + len(child.stdout.read().split())
    assert said <= len(WrittenRecord(path)) <= said + 1
    written(path, exchange_of(call_of(), [b"ok"]))
    assert WrittenRecord(path)[-1].body == b"ok"


def test_two_gateways_cannot_write_one_record(path: Path) -> None:
    with RecordFile(path), pytest.raises(ConfigError):
        RecordFile(path)
    RecordFile(path).close()


def test_a_full_disk_leaves_no_torn_line(path: Path) -> None:
    exchange, large = exchange_of(call_of(), [b"ok"]), exchange_of(call_of(), [b"x" * 100_000])
    old, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with RecordFile(path) as record:
        record.append(exchange)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, old[1]))
            with pytest.raises(OSError):
                record.append(large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            signal.signal(signal.SIGXFSZ, ignored)
        record.append(exchange)
    assert list(WrittenRecord(path)) == [exchange, exchange]


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"call_id": "1"}\n', b"\xff\xfe\n", b"[]\n"])
def test_another_file_is_neither_written_nor_read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for open_it in (RecordFile, WrittenRecord):
        with pytest.raises(ConfigError):
            open_it(path)
    assert path.read_bytes() == content


def test_a_record_of_another_version_is_refused(path: Path) -> None:
    path.write_bytes(b'{"sharpen_record":99}\n')
    for open_it in (RecordFile, WrittenRecord):
        with raises(ConfigError, 99):
            open_it(path)


def test_a_damaged_line_is_named(path: Path) -> None:
    written(path, exchange_of(call_of(), [b"ok"]))
    path.write_bytes(path.read_bytes() + b"{}\n")
    with raises(ConfigError, 3):
        list(WrittenRecord(path))


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        RecordFile(tmp_path / "no" / "record.jsonl")
    with pytest.raises(ConfigError):
        WrittenRecord(tmp_path / "record.jsonl")


def test_a_closed_record_takes_no_more(path: Path) -> None:
    record = RecordFile(path)
    record.close()
    record.close()
    with pytest.raises(ValueError):
        record.append(exchange_of(call_of(), [b"ok"]))


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.touch()
    with pytest.raises(ConfigError):
        WrittenRecord(path)
