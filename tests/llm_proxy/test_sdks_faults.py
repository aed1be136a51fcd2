"""Upstream faults: an SDK sees through the gateway what it would see directly, and the span tells what happened."""

import json
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.errors import raises

from .readings import said_by
from .scenes import scene, wait_until
from .scripted import Fault, Reply, ScriptedUpstream

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]


def client_of(url: str, **more: Any) -> OpenAI:
    return OpenAI(base_url=url, api_key="sk-agent", **{"max_retries": 0, **more})


def ask(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="scripted", messages=HELLO, **more)


def raised_by(url: str, **more: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        list(ask(client_of(url), **more)) if more.get("stream") else ask(client_of(url), **more)
    return caught.value


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 503])
def test_an_error_status_arrives_as_it_is(upstream, status):
    with scene(upstream) as at:
        upstream.default_reply = Fault("status", status=status, message=f"no: {status}", retry_after="7")
        direct, through = at.both(raised_by)
        assert type(through) is type(direct)
        assert isinstance(direct, openai.APIStatusError)
        assert isinstance(through, openai.APIStatusError)
        assert through.body == direct.body
        assert through.response.content == direct.response.content
        assert through.response.headers["retry-after"] == "7"
        (span,) = at.spans()
        assert span.status.status_code == "ERROR"
        assert f"no: {status}" in str(span.status.description)


@pytest.mark.parametrize("fault", [Fault("status", status=429, retry_after="0"), Fault("status"), Fault("reset")])
@pytest.mark.parametrize("is_stream", [False, True])
def test_the_sdk_retries_as_it_would_directly(upstream, fault, is_stream):
    def question(url: str) -> Any:
        upstream.script(fault)
        said = ask(client_of(url, max_retries=1), stream=is_stream)
        return list(said) if is_stream else said

    with scene(upstream) as at:
        direct, through = at.both(question)
        assert through == direct
        wait_until(lambda: [asked.outcome for asked in upstream.requests] == ["faulty", "answered"] * 2)
        assert [span.status.status_code == "ERROR" for span in at.spans()] == [True, False]


def test_the_gateway_retries_where_it_is_told_to(upstream):
    with scene(upstream, num_retries=2) as at:
        upstream.script(Fault("status", status=429, retry_after="0"), Fault("status", status=503))
        assert ask(client_of(at.gateway_url)).choices[0].message.content == "You said: hello there"
        assert len(upstream.requests) == 3
        (span,) = at.spans()
        assert span.status.status_code != "ERROR"


def test_a_reset_is_an_error_that_names_the_upstream_and_no_key(upstream):
    with scene(upstream) as at:
        upstream.script(Fault("reset"))
        through = raised_by(at.gateway_url)
        assert isinstance(through, openai.InternalServerError)
        assert "sk-" not in str(through)
        (span,) = at.spans()
        assert span.status.status_code == "ERROR"


def test_a_call_that_was_sent_on_a_kept_connection_is_never_sent_twice(upstream):
    with scene(upstream) as at:
        ask(client_of(at.gateway_url))
        upstream.script(Fault("reset"))
        assert isinstance(raised_by(at.gateway_url), openai.InternalServerError)
        wait_until(lambda: [asked.outcome for asked in upstream.requests] == ["answered", "faulty"])


def test_a_key_that_an_upstream_repeats_does_not_reach_the_agent(upstream):
    key = "corporate-key-4711-of-the-gateway"
    with scene(upstream, entry={"api_key": key}) as at:
        upstream.default_reply = Fault("status", status=401, message=f"the token {key} is not valid")
        through = raised_by(at.gateway_url)
        assert isinstance(through, openai.AuthenticationError)
        assert "is not valid" in str(through)
        assert key not in str(through)
        assert key.encode() not in through.response.content
        (span,) = at.spans()
        assert key not in str(span)


def test_an_upstream_that_does_not_begin_in_time_is_given_up(upstream):
    with scene(upstream, first_byte_timeout=0.3) as at:
        upstream.default_reply = Fault("slow", delay_seconds=20)
        through = raised_by(at.gateway_url)
        assert isinstance(through, openai.InternalServerError)
        assert through.status_code == 504
        assert upstream.base_url.split("/")[2] in str(through)


def test_malformed_json_arrives_as_it_is_and_the_span_says_so(upstream):
    with scene(upstream) as at:
        upstream.default_reply = Fault("malformed")
        direct, through = at.both(raised_by)
        assert type(through) is type(direct) is json.JSONDecodeError
        assert str(through) == str(direct)
        (span,) = at.spans()
        assert span.status.status_code == "ERROR"
        assert "JSON" in str(span.status.description)


def test_a_malformed_chunk_breaks_the_stream_as_it_would_directly(upstream):
    with scene(upstream) as at:
        upstream.default_reply = Fault("malformed")
        direct, through = at.both(lambda url: raised_by(url, stream=True))
        assert type(through) is type(direct)
        wait_until(lambda: at.spans())  # the client has hung up on it
        (span,) = at.spans()
        assert span.status.status_code == "ERROR"


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_cut_stream_is_cut_at_the_same_place(upstream, is_reset):
    def chunks_until_the_cut(url: str) -> list[Any]:
        found: list[Any] = []
        stream = ask(client_of(url), stream=True)
        with pytest.raises(openai.APIConnectionError):
            found.extend(stream)
        return found

    with scene(upstream) as at:
        upstream.default_reply = Fault("cut", after_chunks=3, is_reset=is_reset)
        direct, through = at.both(chunks_until_the_cut)
        assert through == direct
        assert len(through) == 3
        (span,) = wait_until(at.spans)
        assert span.status.status_code == "ERROR"
        assert said_by(span).text == "You said:"


def test_a_whole_answer_that_is_cut_is_an_error(upstream):
    with scene(upstream) as at:
        upstream.default_reply = Fault("cut")
        direct, through = at.both(raised_by)
        assert isinstance(direct, openai.APIConnectionError)
        assert isinstance(through, openai.APIConnectionError | openai.InternalServerError)
        (span,) = wait_until(at.spans)
        assert span.status.status_code == "ERROR"


def test_a_slow_upstream_is_waited_for(upstream):
    with scene(upstream) as at:
        upstream.default_reply = Fault("slow", delay_seconds=0.3)
        direct, through = at.both(lambda url: ask(client_of(url)))
        assert through == direct
        (span,) = at.spans()
        assert span.end_time - span.start_time >= 0.3


def test_a_client_that_times_out_ends_the_call_upstream(upstream):
    with scene(upstream) as at:
        upstream.default_reply = Fault("hang")
        direct, through = at.both(lambda url: raised_by(url, timeout=0.3))
        assert type(through) is type(direct) is openai.APITimeoutError
        wait_until(lambda: [asked.outcome for asked in upstream.requests] == ["left", "left"])
        (span,) = wait_until(at.spans)
        assert span.status.status_code == "ERROR"
        assert "disconnected" in str(span.status.description)


def test_the_gateways_own_timeout_is_a_504(upstream):
    with scene(upstream, entry={"timeout": 0.2}) as at:
        upstream.script(Fault("hang"))
        through = raised_by(at.gateway_url)
        assert isinstance(through, openai.InternalServerError)
        assert through.status_code == 504
        (span,) = at.spans()
        assert span.status.status_code == "ERROR"


def test_an_upstream_that_is_gone_is_a_clear_error(upstream):
    with scene(upstream) as at:
        upstream.stop()
        through = raised_by(at.gateway_url)
        assert isinstance(through, openai.InternalServerError)
        assert through.status_code == 502
        assert "127.0.0.1" in str(through)


def test_a_client_that_leaves_half_way_leaves_a_span_of_what_it_had_read(upstream):
    upstream.script(Reply("one two three four five six", chunk_seconds=0.02))
    with scene(upstream) as at:
        with ask(client_of(at.gateway_url), stream=True) as stream:
            read = ""
            for chunk in stream:
                read += chunk.choices[0].delta.content or ""
                if "three" in read:
                    break
        (span,) = wait_until(at.spans)
        assert span.status.status_code == "ERROR"
        assert said_by(span).text.startswith("one two three")
        assert said_by(span).text != "one two three four five six"
        wait_until(lambda: upstream.requests[0].outcome == "left")


@pytest.mark.parametrize("kind", [OpenAI, Anthropic])
def test_a_call_beyond_its_limit_is_refused_once_and_not_retried(upstream, kind):
    def question(client: Any) -> Any:
        if kind is OpenAI:
            return ask(client)
        return client.messages.create(model="scripted", max_tokens=9, messages=HELLO)

    with scene(upstream, limits={"rollout_calls": 1}) as at:
        client = kind(base_url=at.gateway_url, api_key="sk-agent", max_retries=2)
        question(client)
        with raises(Exception, "rollout_calls") as caught:
            question(client)
        assert type(caught.value).__name__ == "RateLimitError"
        assert len(upstream.requests) == 1
        totals = at.proxy.totals_sync()
        assert (totals.calls, totals.refused) == (1, 1)
        allowed, refused = at.spans()
        assert allowed.status.status_code != "ERROR"
        assert refused.status.status_code == "ERROR"
        assert refused.attributes["sharpen.llm.refused"]


def test_the_agents_own_key_is_passed_on_where_the_gateway_has_none():
    with ScriptedUpstream(api_key="sk-agent") as upstream, scene(upstream, entry={"api_key": None}) as at:
        direct, through = at.both(lambda url: ask(client_of(url)))
        assert through == direct
        assert "sk-agent" not in str(at.spans())


def test_an_upstream_that_refuses_the_gateways_key_says_so_without_it():
    with ScriptedUpstream(api_key="sk-another") as upstream, scene(upstream) as at:
        error = raised_by(at.gateway_url)
        assert isinstance(error, openai.AuthenticationError)
        assert "sk-" not in str(at.spans())


def test_of_two_upstreams_the_second_answers_where_the_first_is_down(upstream):
    with ScriptedUpstream() as other, scene(upstream, num_retries=1) as at:
        models = [{"name": "scripted", "base_url": each.base_url, "engine": "none"} for each in (upstream, other)]
        at.proxy.update_model_list(models)
        upstream.stop()
        for _ in range(5):
            assert ask(client_of(at.gateway_url)).choices[0].message.content == "You said: hello there"
        assert len(other.requests) == 5
        assert all(span.status.status_code != "ERROR" for span in at.spans())
