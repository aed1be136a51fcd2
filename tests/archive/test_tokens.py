"""Token strips, from what a gateway recorded."""

from typing import Any

import msgspec
import pytest

from sharpen import rollout
from sharpen.store import InMemoryLightningStore
from sharpen.types import LLM, Span
from tests.archive.internals import TokenStrip, read_transcript, token_strips
from tests.llm_proxy.internals import exchange_attributes

from ..llm_proxy.asked import call_of, exchange_of
from ..llm_proxy.replies import Reply, logprob_of, token_ids_of, tokens_of
from .rollout_scenes import ask, play, scene

SAID = "the sky is blue"


@rollout
def asks(task: dict[str, Any], llm: LLM) -> None:
    if task["stream"]:
        asks_for_a_stream(llm)
    else:
        ask(llm, [{"role": "user", "content": "colour?"}], logprobs=True)


def asks_for_a_stream(llm: LLM) -> None:
    import json
    import urllib.request

    body = {"model": llm.model, "messages": [{"role": "user", "content": "colour?"}], "logprobs": True, "stream": True}
    url, headers = f"{llm.endpoint}/chat/completions", {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        assert b"[DONE]" in answer.read()


async def strip_of(mode: str, *, stream: bool = False, engine: Any = "vllm") -> TokenStrip | None:
    store = InMemoryLightningStore()
    async with scene(store, Reply(SAID), engine=engine, mode=mode):
        done = await play(store, asks, {"stream": stream})
    [entry] = (await read_transcript(store, done.rollout_id)).entries
    assert entry.error is None
    return entry.tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_a_recorded_call_has_ids_log_probabilities_and_texts(stream: bool) -> None:
    strip = await strip_of("record", stream=stream)
    assert strip is not None
    assert strip.texts == tokens_of(SAID)
    assert strip.response_ids == token_ids_of(SAID)
    assert strip.logprobs == [logprob_of(token) for token in tokens_of(SAID)]
    assert strip.prompt_ids


async def test_texts_are_known_only_where_the_exchange_was_kept() -> None:
    strip = await strip_of("live")
    assert strip is not None
    assert (strip.response_ids, strip.texts) == (token_ids_of(SAID), None)


def call(**attributes: Any) -> Span:
    names = {"gen_ai.operation.name": "chat", **{f"sharpen.llm.{key}": value for key, value in attributes.items()}}
    return Span("ro-1", "at-1", 1, "t" * 32, "s" * 16, name="chat m", attributes=names)


def only_strip(**attributes: Any) -> TokenStrip | None:
    return token_strips([call(**attributes)]).get("s" * 16)


def test_a_call_without_tokens_has_no_strip() -> None:
    assert only_strip() is None
    assert only_strip(prompt_token_ids=[1, 2]) is None


def test_of_several_choices_the_strip_shows_the_first() -> None:
    strip = only_strip(response_token_ids="[[1, 2], [3]]", response_logprobs="[[-0.5, -1], [-2]]", weights_version="7")
    assert strip == TokenStrip([], [1, 2], [-0.5, -1.0], None, "7")


def test_log_probabilities_that_are_missing_are_left_open() -> None:
    strip = only_strip(response_token_ids=[1, 2, 3], response_logprobs=[-0.5])
    assert strip is not None
    assert strip.logprobs == [-0.5, None, None]


def test_log_probabilities_alone_make_a_strip() -> None:
    strip = only_strip(response_logprobs=[-0.5, -1.5])
    assert strip == TokenStrip([], [], [-0.5, -1.5])


def test_a_strip_belongs_to_the_call_and_not_to_what_holds_it() -> None:
    inner = call(response_token_ids=[1])
    outer = Span("ro-1", "at-1", 2, "t" * 32, "o" * 16, name="step")
    found = token_strips([outer, msgspec.structs.replace(inner, parent_id="o" * 16, name="sharpen.llm_call")])
    assert list(found) == ["s" * 16]


def test_texts_of_the_responses_api_are_read_from_its_exchange() -> None:
    tokens = [{"token": token, "logprob": logprob_of(token), "top_logprobs": []} for token in tokens_of(SAID)]
    entry = {"type": "output_text", "text": SAID, "annotations": [], "logprobs": tokens}
    body = {"id": "resp_1", "status": "completed", "output": [{"type": "message", "content": [entry]}]}
    asked = call_of({"model": "m", "input": "colour?"}, api="responses")
    exchange = exchange_of(asked, [msgspec.json.encode(body)], content_type="application/json")
    span = call(response_logprobs=[logprob_of(token) for token in tokens_of(SAID)])
    span.attributes.update(exchange_attributes(exchange))
    assert token_strips([span])["s" * 16].texts == tokens_of(SAID)
