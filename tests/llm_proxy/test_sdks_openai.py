"""The `openai` client through the gateway: the same bytes up, the same results down, and every call recorded."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from .readings import is_complete, said_by, without_ids
from .replies import Reply, token_ids_of
from .scenes import scene

HELLO: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello there"}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
FLAT_WEATHER: list[Any] = [{"type": "function", **WEATHER[0]["function"]}]


class City(BaseModel):
    name: str
    inhabitants: int


def chat(client: OpenAI) -> Any:
    return client.chat.completions.create(model="scripted", messages=HELLO, temperature=0.5, max_tokens=64, seed=7)


def chat_two(client: OpenAI) -> Any:
    return client.chat.completions.create(model="scripted", messages=HELLO, n=2, stop=["END"])


def chat_stream(client: OpenAI) -> Any:
    return list(client.chat.completions.create(model="scripted", messages=HELLO, stream=True))


def chat_stream_usage(client: OpenAI) -> Any:
    options = {"include_usage": True}
    return list(
        client.chat.completions.create(model="scripted", messages=HELLO, stream=True, stream_options=options)  # type: ignore[call-overload]
    )


def chat_stream_helper(client: OpenAI) -> Any:
    with client.chat.completions.stream(model="scripted", messages=HELLO) as stream:
        return [event.type for event in stream], stream.get_final_completion()


def chat_tools(client: OpenAI) -> Any:
    """The model asks for the weather, is told it, and answers."""
    first = client.chat.completions.create(model="scripted", messages=HELLO, tools=WEATHER)
    message = first.choices[0].message
    assert message.tool_calls
    told = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    talk = [*HELLO, message.model_dump(exclude_none=True), told]
    return first, client.chat.completions.create(model="scripted", messages=talk, tools=WEATHER)


def chat_tools_stream(client: OpenAI) -> Any:
    return list(client.chat.completions.create(model="scripted", messages=HELLO, tools=WEATHER, stream=True))


def chat_parse(client: OpenAI) -> Any:
    said = client.chat.completions.parse(model="scripted", messages=HELLO, response_format=City)
    assert said.choices[0].message.parsed == City(name="Rome", inhabitants=42)
    return said


def completion(client: OpenAI) -> Any:
    return client.completions.create(model="scripted", prompt="Once upon a time", max_tokens=16)


def completion_stream(client: OpenAI) -> Any:
    return list(client.completions.create(model="scripted", prompt="Once upon a time", stream=True))


def responses(client: OpenAI) -> Any:
    return client.responses.create(model="scripted", input="hello there", instructions="Be brief.")


def responses_stream(client: OpenAI) -> Any:
    return list(client.responses.create(model="scripted", input="hello there", stream=True))


def responses_tools(client: OpenAI) -> Any:
    first = client.responses.create(model="scripted", input="hello there", tools=FLAT_WEATHER)
    call = first.output[0].model_dump()
    told = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    talk: list[Any] = [{"role": "user", "content": "hello there"}, call, told]
    return first, client.responses.create(model="scripted", input=talk, tools=FLAT_WEATHER)


def responses_tools_stream(client: OpenAI) -> Any:
    return list(client.responses.create(model="scripted", input="hello there", tools=FLAT_WEATHER, stream=True))


def responses_parse(client: OpenAI) -> Any:
    said = client.responses.parse(model="scripted", input="hello there", text_format=City)
    assert said.output_parsed == City(name="Rome", inhabitants=42)
    return said


def embeddings(client: OpenAI) -> Any:
    return client.embeddings.create(model="scripted", input=["one", "two words"])


CASES = [
    (chat, 1),
    (chat_two, 1),
    (chat_stream, 1),
    (chat_stream_usage, 1),
    (chat_stream_helper, 1),
    (chat_tools, 2),
    (chat_tools_stream, 1),
    (chat_parse, 1),
    (completion, 1),
    (completion_stream, 1),
    (responses, 1),
    (responses_stream, 1),
    (responses_tools, 2),
    (responses_tools_stream, 1),
    (responses_parse, 1),
    (embeddings, 1),
]


@pytest.mark.parametrize(("ask", "calls"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_gateway_changes_nothing_and_records_everything(upstream, ask, calls):
    with scene(upstream) as at:
        direct, through = at.both(lambda url: ask(OpenAI(base_url=url, api_key="sk-agent", max_retries=0)))
        assert through == direct
        sent = [asked.body for asked in upstream.requests]
        assert sent[:calls] == sent[calls:]
        spans = at.spans()
        assert len(spans) == calls
        for span, asked in zip(spans, upstream.requests[calls:], strict=True):
            is_complete(span, asked.json)


@pytest.mark.parametrize("ask", [chat, chat_stream_usage, chat_tools, chat_tools_stream, completion, completion_stream])
def test_an_engine_is_asked_for_token_ids_and_nothing_else_changes(vllm, ask):
    with scene(vllm) as at:
        direct, through = at.both(lambda url: ask(OpenAI(base_url=url, api_key="sk-agent", max_retries=0)))
        assert without_ids(through) == without_ids(direct)
        for span, asked in zip(at.spans(), vllm.requests[len(vllm.requests) // 2 :], strict=True):
            is_complete(span, asked.json, has_ids=True)


def test_recorded_token_ids_are_those_that_were_sampled(vllm):
    vllm.default_reply = Reply("Rome is the capital.")
    with scene(vllm) as at:
        client = OpenAI(base_url=at.gateway_url, api_key="sk-agent")
        chat(client), chat_stream(client), completion(client)
        for span in at.spans():
            assert said_by(span).response_ids == token_ids_of("Rome is the capital.")
            assert len(said_by(span).logprobs) == 4
        assert said_by(at.spans()[0]).prompt_ids == token_ids_of(" Be brief. hello there")


def test_models_are_listed(upstream):
    with scene(upstream, entry={"model_name": "scripted"}) as at:
        direct, through = at.both(lambda url: [each.id for each in OpenAI(base_url=url, api_key="sk").models.list()])
        assert through == direct == ["scripted"]
        assert at.spans() == []


async def _everything(url: str) -> Any:
    async with AsyncOpenAI(base_url=url, api_key="sk-agent", max_retries=0) as client:
        whole = client.chat.completions.create(model="scripted", messages=HELLO)
        parsed = client.chat.completions.parse(model="scripted", messages=HELLO, response_format=City)
        stream = await client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
        events = await client.responses.create(model="scripted", input="hello there", stream=True)
        vectors = client.embeddings.create(model="scripted", input="one")
        return [await whole, await parsed, [c async for c in stream], [e async for e in events], await vectors]


def test_the_async_client_gets_the_same(upstream):
    with scene(upstream) as at:
        direct, through = at.both(lambda url: asyncio.run(_everything(url)))
        assert through == direct
        assert len(at.spans()) == 5


def test_fifty_calls_at_once_keep_their_answers_apart(vllm):
    async def ask(url: str) -> list[str]:
        async with AsyncOpenAI(base_url=url, api_key="sk-agent") as client:
            talks = [[{"role": "user", "content": f"number {n}"}] for n in range(50)]
            calls = [client.chat.completions.create(model="scripted", messages=talk) for talk in talks]  # type: ignore[arg-type]
            return [str(said.choices[0].message.content) for said in await asyncio.gather(*calls)]

    with scene(vllm) as at:
        assert asyncio.run(ask(at.gateway_url)) == [f"You said: number {n}" for n in range(50)]
        spans = at.spans()
        assert len(spans) == 50
        for span in spans:
            assert said_by(span).response_ids == token_ids_of(said_by(span).text)
