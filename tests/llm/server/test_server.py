"""The server over real HTTP: what is sampled arrives whole, and the server starts and ends in order."""

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from openai import APIError, APIStatusError, AuthenticationError, OpenAI

from sharpen.errors import ConfigError, PortTakenError, RunError
from sharpen.llm.engine import Engine, SamplingParams
from sharpen.llm.server import EngineServer
from tests.errors import raises

from ..engine.tiny import build, logprobs_of
from .conftest import NAME, client_of, wait_until

HELLO = [{"role": "user", "content": "How many clips? \u20ac"}]
IDS = {"return_token_ids": True}


def chat(client: OpenAI, **options: Any) -> Any:
    asked = {"model": NAME, "messages": HELLO, "max_tokens": 12, "seed": 5, **options}
    return client.chat.completions.create(**asked)


# -- what is sampled ---------------------------------------------------------------------------------


def test_a_chat_is_what_the_engine_samples_after_the_chat_template(
    server: EngineServer, client: OpenAI, tokenizer: Any
) -> None:
    answer = chat(client, logprobs=True, extra_body=IDS)
    prompt = tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)
    (sample,) = server.engine.sample([prompt], SamplingParams(max_new_tokens=12, seed=5))[0].samples
    (choice,) = answer.choices
    assert answer.prompt_token_ids == prompt
    assert choice.token_ids == sample.token_ids
    assert choice.message.content == sample.text
    assert [each.logprob for each in choice.logprobs.content] == pytest.approx(sample.logprobs, abs=1e-4)
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(sample.token_ids)


def test_log_probabilities_are_those_of_the_distribution_that_was_sampled(
    client: OpenAI, model: Any, tokenizer: Any
) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3, temperature=1.0, extra_body=IDS)
    (choice,) = answer.choices
    expected = logprobs_of(model, answer.prompt_token_ids, choice.token_ids)
    told = choice.logprobs.content
    assert [each.logprob for each in told] == pytest.approx(expected, abs=1e-4)
    assert b"".join(bytes(each.bytes) for each in told) == tokenizer.decode(choice.token_ids).encode() or any(
        "\ufffd" in each.token for each in told
    )
    assert all(len(each.top_logprobs) == 3 for each in told)
    assert all(each.logprob <= each.top_logprobs[0].logprob + 1e-6 for each in told)
    greedy = chat(client, logprobs=True, temperature=0)
    assert {each.logprob for each in greedy.choices[0].logprobs.content} == {0.0}


def test_numbers_are_told_only_where_they_are_asked_for(client: OpenAI) -> None:
    answer = chat(client)
    assert answer.choices[0].logprobs is None
    assert not {"prompt_token_ids"} & answer.model_extra.keys()
    assert "token_ids" not in answer.choices[0].model_extra


def test_several_choices_differ_and_a_seed_repeats_them(client: OpenAI) -> None:
    first, second = (chat(client, n=4, extra_body=IDS) for _ in range(2))
    ids = [choice.token_ids for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert len({tuple(each) for each in ids}) == 4
    assert ids == [choice.token_ids for choice in second.choices]
    assert first.id != second.id


def test_completions_take_texts_and_token_ids_one_or_several(client: OpenAI, tokenizer: Any) -> None:
    options: dict[str, Any] = {"model": NAME, "max_tokens": 6, "seed": 1, "extra_body": IDS}
    ids = tokenizer("Final Answer")["input_ids"]
    one = client.completions.create(prompt="Final Answer", **options).choices
    same = client.completions.create(prompt=ids, **options).choices
    several = client.completions.create(prompt=["Final Answer", "May"], n=2, logprobs=2, **options).choices
    lists = client.completions.create(prompt=[ids, ids[:1]], **options).choices
    assert one[0].prompt_token_ids == ids
    assert one[0].token_ids == same[0].token_ids == several[0].token_ids == lists[0].token_ids
    assert one[0].text == same[0].text
    assert [choice.index for choice in several] == [0, 1, 2, 3]
    assert several[2].prompt_token_ids == tokenizer("May")["input_ids"]
    told = several[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 6


def test_a_sample_ends_at_a_stop_string_a_stop_token_or_its_limit(client: OpenAI) -> None:
    whole = chat(client, temperature=0, max_tokens=8, extra_body=IDS | {"ignore_eos": True}).choices[0]
    assert whole.finish_reason == "length"
    assert len(whole.token_ids) == 8
    third = whole.token_ids[2]
    place = whole.token_ids.index(third)
    stopped = chat(client, temperature=0, max_tokens=8, extra_body=IDS | {"stop_token_ids": [third]}).choices[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", third)
    assert stopped.token_ids == whole.token_ids[: place + 1]
    word = whole.message.content[3:5]
    cut = chat(client, temperature=0, max_tokens=8, stop=[word]).choices[0]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", word)
    assert cut.message.content == whole.message.content.partition(word)[0]


def test_an_answer_is_bounded_by_the_server_and_by_the_window(engine: Engine, model: Any, tokenizer: Any) -> None:
    with EngineServer(engine, tokenizer, name=NAME, max_response_tokens=3) as server, client_of(server) as client:
        for options in ({}, {"max_tokens": 100}, {"max_completion_tokens": 100, "max_tokens": None}):
            answer = chat(client, extra_body={"ignore_eos": True}, **options)
            assert answer.usage.completion_tokens == 3
    small = Engine(model, tokenizer, max_batch=2, max_tokens=48)
    with EngineServer(small, tokenizer, name=NAME) as server, client_of(server) as client:
        long = chat(client, max_tokens=100_000, extra_body={"ignore_eos": True})
        assert long.usage.total_tokens == 48
        assert long.choices[0].finish_reason == "length"


# -- versions of the weights -------------------------------------------------------------------------


def test_a_response_tells_the_version_of_its_weights_and_of_each_token_where_they_changed(
    long_engine: Engine, tokenizer: Any
) -> None:
    with EngineServer(long_engine, tokenizer, name=NAME) as server, client_of(server) as client:
        long_engine.update_weights(7)
        before = chat(client)
        told: list[str] = []
        with chat(client, stream=True, max_tokens=None, extra_body={"ignore_eos": True} | IDS) as stream:
            for chunk in stream:
                (choice,) = chunk.choices
                told += choice.model_extra.get("weights_versions") or [chunk.weights_version] * len(choice.token_ids)
                if long_engine.weights_version == 7:
                    long_engine.update_weights(8)
                if told[-1] == "8":
                    break
        after = chat(client)
    assert (before.weights_version, after.weights_version) == ("7", "8")
    assert "weights_versions" not in before.choices[0].model_extra
    assert (told[0], told) == ("7", sorted(told))


# -- from start to stop ------------------------------------------------------------------------------


def test_the_server_starts_an_engine_that_does_not_run_and_leaves_one_that_does(engine: Engine, tokenizer: Any) -> None:
    with EngineServer(engine, tokenizer, name=NAME):
        assert engine.is_started
    assert not engine.is_started
    with engine:
        with EngineServer(engine, tokenizer, name=NAME) as server:
            assert server.is_serving
        assert engine.is_started


def test_an_engine_that_was_stopped_by_others_is_told_not_waited_for(engine: Engine, tokenizer: Any) -> None:
    with EngineServer(engine, tokenizer, name=NAME) as server, client_of(server) as client:
        engine.stop()
        with pytest.raises(APIStatusError):
            chat(client)


def test_it_can_be_started_again_and_stopped_twice(engine: Engine, tokenizer: Any) -> None:
    server = EngineServer(engine, tokenizer, name=NAME)
    server.stop()
    with pytest.raises(RunError):
        _ = server.base_url
    for _ in range(2):
        assert server.start() is server.start()
        with client_of(server) as client:
            assert chat(client, max_tokens=2).usage.completion_tokens <= 2
        server.stop()
        server.stop()
        assert not server.is_serving


def test_a_taken_port_is_said_in_words_and_starts_nothing(engine: Engine, server: EngineServer, tokenizer: Any) -> None:
    port = int(server.base_url.split(":")[2].partition("/")[0])
    with raises(PortTakenError, port, "127.0.0.1"):
        EngineServer(engine, tokenizer, name=NAME, port=port).start()
    assert not engine.is_started


def test_calls_under_way_are_refused_when_the_server_stops(long_engine: Engine, tokenizer: Any) -> None:
    server = EngineServer(long_engine, tokenizer, name=NAME).start()
    with long_engine, client_of(server) as client:
        stream = chat(client, stream=True, max_tokens=None, extra_body={"ignore_eos": True})
        next(stream)
        server.stop()
        with pytest.raises(APIError):
            list(stream)
        assert wait_until(lambda: long_engine.num_running == 0)


def test_the_server_stops_although_its_engine_is_held(engine: Engine, tokenizer: Any) -> None:
    server = EngineServer(engine, tokenizer, name=NAME).start()
    with engine, client_of(server) as client, ThreadPoolExecutor() as pool:
        with engine.paused():
            asking = pool.submit(chat, client)
            assert wait_until(lambda: engine.num_waiting)
            server.stop()
        with pytest.raises(APIStatusError) as caught:
            asking.result()
        assert (caught.value.status_code, caught.value.code) == (503, "server_stopped")


def test_only_those_with_the_token_are_served(engine: Engine, tokenizer: Any) -> None:
    with EngineServer(engine, tokenizer, name=NAME, token="sk-right") as server:
        with client_of(server, api_key="sk-right") as client:
            assert [each.id for each in client.models.list()] == [NAME]
            assert chat(client, max_tokens=1).choices
        for wrong in ("sk-wrong", "sk-righ"):
            with client_of(server, api_key=wrong) as client, pytest.raises(AuthenticationError) as caught:
                chat(client)
            assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"name": ""}, ("name",)),
        ({"host": "0.0.0.0"}, ("host",)),
        ({"token": ""}, ("token",)),
        ({"max_response_tokens": 0}, ("max_response_tokens", 0)),
        ({"chat_template_kwargs": {"tokenize": False}}, ("chat_template_kwargs", "tokenize")),
    ],
)
def test_settings_that_cannot_work_are_refused(
    engine: Engine, tokenizer: Any, options: dict[str, Any], named: tuple[object, ...]
) -> None:
    with raises(ConfigError, *named):
        EngineServer(engine, tokenizer, **{"name": NAME, **options})


def test_an_engine_without_tokenizer_is_told_to_the_client(model: Any, tokenizer: Any) -> None:
    engine = Engine(model, max_batch=2, max_tokens=512)
    with (
        EngineServer(engine, tokenizer, name=NAME) as server,
        client_of(server) as client,
        raises(APIStatusError, "Engine("),
    ):
        chat(client)


def test_a_model_that_has_diverged_is_an_error_not_a_hang(tokenizer: Any) -> None:
    model = build("Llama", vocab=len(tokenizer))
    engine = Engine(model, tokenizer, max_batch=2, max_tokens=512)
    with EngineServer(engine, tokenizer, name=NAME) as server, client_of(server) as client:
        with engine.paused(), torch.no_grad():
            model.lm_head.weight.fill_(float("nan"))
            engine.update_weights(1)
        for stream in (False, True):
            with pytest.raises(APIStatusError) as caught:
                list(chat(client, stream=stream))
            assert (caught.value.status_code, caught.value.code) == (500, "engine_failed")


def test_a_head_without_end_is_refused(server: EngineServer, client: OpenAI) -> None:
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=20) as raw:
        raw.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * 64 * 1024)
        assert raw.recv(100).startswith(b"HTTP/1.1 431 ")
    assert client.models.list().data
