"""What all readings share: errors of upstreams, packed bodies, bounds; and embeddings."""

import base64
import gzip
import json
import struct
import zlib

import pytest

from tests.llm_proxy.internals import Usage, reading_base as reading_module, reading_for

from .answers import read_stream, read_whole, sse

BODY = {"id": "x", "model": "small", "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "bad model", "type": "invalid_request_error", "code": None}}, "bad model"),
        ({"type": "error", "error": {"type": "not_found_error", "message": "bad model"}}, "bad model"),
        ({"object": "error", "message": "bad model", "code": 404}, "bad model"),
        ({"detail": "bad model"}, "bad model"),
        ({"error": "bad model"}, "bad model"),
        (b"bad model\n", "bad model"),
    ],
)
@pytest.mark.parametrize("api", ["chat", "completions", "responses", "embeddings", "messages"])
def test_an_error_is_told_in_the_upstreams_words(api, body, message):
    said = read_whole(api, body, status=404)
    assert said.error == f"the upstream answered 404: {message}"
    assert said.output_messages == []
    assert not said.has_begun


def test_errors_without_words():
    assert read_whole("chat", b"", status=502).error == "the upstream answered 502"
    assert read_whole("chat", b"[1]", status=502).error == "the upstream answered 502"
    details = {"detail": [{"loc": ["body", "n"], "msg": "must be positive"}]}
    assert "must be positive" in read_whole("chat", details, status=422).error


def test_a_long_error_is_cut():
    assert len(read_whole("chat", b"x" * 100_000, status=500).error) < 1100


@pytest.mark.parametrize("key", ["sk-abcdefghijklmnop", "sk-ant-api03-abcdefghijk", "hf_abcdefghijklmnop"])
def test_a_key_that_an_upstream_repeats_is_not_told(key):
    said = read_whole("chat", {"error": {"message": f"Incorrect API key provided: {key}."}}, status=401)
    assert "Incorrect API key provided" in said.error
    assert key not in said.error
    assert "abcdefgh" not in read_whole("chat", b"Bearer abcdefghijk is wrong", status=401).error


def test_an_error_to_a_streaming_request_is_read_whole():
    said = read_stream("chat", json.dumps({"error": {"message": "no"}}).encode(), status=429)
    assert said.error == "the upstream answered 429: no"


# -- packed bodies ---------------------------------------------------------------------------------------


def raw_deflate(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)]
)
def test_packed_bodies_are_unpacked_for_reading(encoding, pack):
    assert read_whole("chat", pack(json.dumps(BODY).encode()), content_encoding=encoding) == read_whole("chat", BODY)
    events = [{"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}, "[DONE]"]
    packed = pack(sse(events))
    told = read_stream("chat", packed, cuts=range(len(packed)), content_encoding=encoding)
    assert told == read_stream("chat", sse(events))


def test_bodies_that_cannot_be_unpacked_are_told():
    assert "content encoding 'br'" in read_whole("chat", b"abc", content_encoding="br").error
    assert "incorrect header check" in read_whole("chat", b"no gzip", content_encoding="gzip").error  # of zlib


def test_a_small_packed_body_cannot_fill_the_memory(monkeypatch):
    monkeypatch.setattr(reading_module, "MAX_BYTES", 1000)
    said = read_whole("chat", gzip.compress(b" " * 10_000_000), content_encoding="gzip")
    assert "1000 bytes" in said.error


def test_of_an_answer_without_end_only_the_beginning_is_read(monkeypatch):
    monkeypatch.setattr(reading_module, "MAX_BYTES", 200)
    event = sse([{"choices": [{"index": 0, "delta": {"content": "hi"}}]}])
    reading = reading_for("chat", "text/event-stream")
    for _ in range(100):
        reading.feed(event)
    said = reading.finish(True)
    assert "200 bytes" in said.error
    assert said.has_begun


def test_a_whole_answer_that_was_cut_is_told():
    said = read_whole("chat", json.dumps(BODY).encode()[:20], is_complete=False)
    assert "20 bytes" in said.error
    assert not said.is_complete


# -- embeddings ------------------------------------------------------------------------------------------


def embeddings(vector):
    usage = {"prompt_tokens": 4, "total_tokens": 4}
    data = [{"object": "embedding", "index": 0, "embedding": vector}]
    return {"object": "list", "model": "small", "data": data, "usage": usage}


def test_of_embeddings_usage_and_length_are_read():
    numbers = [0.5, -1.0, 2.0, 4.0, 0.25]
    packed = base64.b64encode(struct.pack("<5f", *numbers)).decode()
    for vector in (numbers, packed):
        said = read_whole("embeddings", embeddings(vector))
        assert (said.usage, said.model, said.dimensions) == (Usage(4, 0), "small", 5)
        assert said.output_messages == []
        assert said.error is None
    assert read_whole("embeddings", {**embeddings([]), "data": []}).dimensions is None
    assert read_whole("embeddings", embeddings([])).dimensions == 0


def test_malformed_embeddings_are_told():
    assert read_whole("embeddings", b"[").error is not None
    assert read_whole("embeddings", {"data": 3}).error is not None
    assert read_whole("embeddings", {"error": {"message": "no"}}).error == "the upstream failed: no"
