"""Asking a model with the real client, over HTTP: what comes back, what may be tried again, what ends the run."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from sharpen.errors import ConfigError, RunError
from tests.algorithm.internals import Answer, Assistant, Cost, NoAnswerError
from tests.errors import raises

from .scripted_openai import KEY, Reply, ScriptedOpenAI

HELLO = [{"role": "user", "content": "one two three"}]


async def ask(
    server: ScriptedOpenAI, *, temperature: float | None = 0.5, seed: int | None = None, **client: Any
) -> Answer:
    assistant = Assistant(server.client(**({"max_retries": 0} | client)))
    return await assistant.ask("scripted", HELLO, temperature=temperature, seed=seed)


# -- answers -----------------------------------------------------------------------------------------


async def test_an_answer_has_its_text_and_its_cost() -> None:
    with ScriptedOpenAI("hello you") as server:
        assert await ask(server, seed=7) == Answer("hello you", Cost(calls=1, input_tokens=3, output_tokens=2))
    sent = server.requests[0]
    assert (sent.model, sent.body["temperature"], sent.body["seed"]) == ("scripted", 0.5, 7)
    assert sent.body["messages"] == HELLO


async def test_options_that_were_not_given_are_not_sent() -> None:
    with ScriptedOpenAI("hello") as server:
        await ask(server, temperature=None)
    assert server.requests[0].body.keys() == {"model", "messages"}


async def test_a_server_that_counts_no_tokens_still_counts_as_a_call() -> None:
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
    with ScriptedOpenAI(Reply(body=body)) as server:
        assert await ask(server) == Answer("hi", Cost(calls=1))


async def test_an_answer_that_was_cut_off_says_so() -> None:
    with ScriptedOpenAI(Reply("half of", finish_reason="length")) as server:
        assert (await ask(server)).is_cut_off


async def test_the_thoughts_of_a_local_model_are_no_part_of_its_answer() -> None:
    with ScriptedOpenAI("<think>\nhm, <b>\n</think>\n\nthe answer </think> stays") as server:
        assert (await ask(server)).text == "the answer </think> stays"


async def test_half_a_character_in_a_message_can_be_sent() -> None:
    with ScriptedOpenAI("ok") as server:
        await Assistant(server.client()).ask("m", [{"role": "user", "content": "a\ud800b"}], temperature=None)
    assert server.requests[0].text == "a?b"


# -- failures that may go better next time -----------------------------------------------------------

FILTERED = {"error": {"message": "flagged", "code": "content_filter", "type": "invalid_request_error"}}
TOO_LONG = "This model's maximum context length is 8192 tokens"


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (Reply(refusal="I must not", text=None), ("I must not",)),
        (Reply("half", finish_reason="content_filter"), ()),
        (Reply(" \n"), ()),
        (Reply(None), ()),
        (Reply("", finish_reason="length"), ()),
        (Reply("<think>and on and on", finish_reason="length"), ()),
    ],
    ids=["refused", "filtered", "blank", "none", "cut-off", "cut-off-thinking"],
)
async def test_an_answer_of_no_use_is_paid_for_all_the_same(reply: Reply, named: tuple[str, ...]) -> None:
    with ScriptedOpenAI(reply) as server, raises(NoAnswerError, *named) as caught:
        await ask(server)
    assert (caught.value.cost.calls, caught.value.cost.input_tokens) == (1, 3)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body={"choices": [], "id": "x"}),
        Reply(is_dropped=True),
        Reply("late", delay_seconds=30),
        Reply(status=400, error=TOO_LONG),
        Reply(status=400, error=FILTERED),
    ],
    ids=["no-choice", "dropped", "late", "too-long", "filtered"],
)
async def test_a_call_that_may_go_better_next_time_is_no_answer(reply: Reply) -> None:
    with ScriptedOpenAI(reply) as server, raises(NoAnswerError, "scripted"):
        await ask(server, timeout=0.3)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_server_is_asked_again_by_the_client_before_it_is_no_answer(status: int) -> None:
    with ScriptedOpenAI(Reply(status=status, error="busy")) as server:
        with raises(NoAnswerError, status):
            await ask(server, max_retries=2)
        assert server.count() == 3


async def test_an_answer_after_the_clients_own_retries_is_an_answer() -> None:
    with ScriptedOpenAI(lambda request: "there" if server.count() > 2 else Reply(status=429)) as server:
        assert (await ask(server, max_retries=2)).text == "there"


async def test_a_server_that_is_gone_is_no_answer() -> None:
    with ScriptedOpenAI() as server:
        client = server.client(max_retries=0)
    with raises(NoAnswerError, "m", "127.0.0.1", "ConnectError"):
        await Assistant(client).ask("m", HELLO, temperature=None)


# -- failures that end the run -----------------------------------------------------------------------

SPENT = {"error": {"message": "no credit", "code": "insufficient_quota", "type": "insufficient_quota"}}


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (Reply(status=401, error=f"Incorrect API key provided: {KEY}"), (401,)),
        (Reply(status=401, error="Incorrect key sk-scri******cret."), ()),
        (Reply(status=403, error="no"), ("scripted",)),
        (Reply(status=404, error="no such model"), ("scripted", "base_url")),
        (Reply(status=400, error="bad role"), (400,)),
        (Reply(status=429, error=SPENT), ()),
        (Reply(status=429, error="limit", headers={"x-should-retry": "false"}), ()),
    ],
)
async def test_a_call_that_would_always_fail_ends_the_run_and_shows_no_key(
    reply: Reply, named: tuple[object, ...]
) -> None:
    with ScriptedOpenAI(reply) as server, raises(RunError, *named) as caught:
        await ask(server)
    assert not isinstance(caught.value, NoAnswerError)
    assert caught.value.__suppress_context__
    assert "secret" not in str(caught.value)
    assert "cret" not in str(caught.value)


async def test_a_page_that_is_no_api_ends_the_run() -> None:
    page = Reply(headers={"content-type": "text/html"}, raw=b"<html>welcome</html>")
    with ScriptedOpenAI(page) as server, raises(RunError, "<html>welcome", "base_url"):
        await ask(server)


async def test_broken_json_is_no_answer() -> None:
    with ScriptedOpenAI(Reply(raw=b'{"choices": [')) as server, pytest.raises(NoAnswerError):
        await ask(server)


# -- options that a model does not take --------------------------------------------------------------


def picky(*names: str) -> Callable[[dict[str, Any]], str | Reply]:
    """A model that takes none of these options, and complains of one at a time."""

    def reply(request: dict[str, Any]) -> str | Reply:
        wrong = next((name for name in names if name in request and request["model"] == "picky"), None)
        error = {"error": {"message": f"Unsupported value: '{wrong}' does not support 0.5", "param": wrong}}
        return Reply(status=400, error=error) if wrong else "fine"

    return reply


async def test_a_model_that_takes_no_temperature_is_asked_without_it_from_then_on() -> None:
    with ScriptedOpenAI(picky("temperature")) as server:
        assistant = Assistant(server.client(max_retries=0))
        first = await assistant.ask("picky", HELLO, temperature=0.5)
        second = await assistant.ask("picky", HELLO, temperature=0.7)
        await assistant.ask("other", HELLO, temperature=0.9)
    assert first.text == second.text == "fine"
    sent = [asked.body.get("temperature") for asked in server.requests]
    assert sent == [0.5, None, None, 0.9]


async def test_a_model_may_take_neither_temperature_nor_seed() -> None:
    with ScriptedOpenAI(picky("temperature", "seed")) as server:
        answer = await Assistant(server.client(max_retries=0)).ask("picky", HELLO, temperature=0.5, seed=3)
    assert answer.text == "fine"
    assert server.requests[-1].body.keys() == {"model", "messages"}
    assert server.count() == 3


async def test_a_complaint_of_an_option_that_was_not_sent_ends_the_run() -> None:
    unsupported = Reply(status=400, error="temperature is not supported")
    with ScriptedOpenAI(unsupported) as server, raises(RunError, "temperature is not supported"):
        await ask(server, temperature=0.5)
    assert server.count() == 2


# -- many at once ------------------------------------------------------------------------------------


async def test_no_more_calls_run_at_once_than_the_limit() -> None:
    together = threading.Barrier(3)  # passed only when three are in work at the same time

    def reply(request: dict[str, Any]) -> str:
        together.wait(20)
        return "ok"

    with ScriptedOpenAI(reply) as server:
        assistant = Assistant(server.client(max_retries=0), limit=3)
        answers = await asyncio.gather(*(assistant.ask("m", HELLO, temperature=None) for _ in range(9)))
    assert len(answers) == server.count() == 9
    assert server.most_at_once == 3


async def test_a_failed_call_gives_its_place_to_the_next() -> None:
    with ScriptedOpenAI(lambda request: Reply(status=500)) as server:
        assistant = Assistant(server.client(max_retries=0), limit=1)
        calls = (assistant.ask("m", HELLO, temperature=None) for _ in range(3))
        failed = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in failed] == [NoAnswerError] * 3


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_that_is_no_count_is_an_error(limit: Any) -> None:
    with raises(ConfigError, "limit"):
        Assistant(AsyncOpenAI(api_key="x"), limit=limit)


async def test_no_log_line_holds_a_key(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="sharpen"), ScriptedOpenAI(picky("temperature")) as server:
        await Assistant(server.client(max_retries=0)).ask("picky", HELLO, temperature=0.5)
    assert any("'picky'" in message and "temperature" in message for message in caplog.messages)
    assert KEY not in caplog.text
