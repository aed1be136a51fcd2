"""LangChain's ChatOpenAI through the gateway: the same answers as directly, and every call recorded."""

import asyncio
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from .readings import is_complete, said_by
from .replies import token_ids_of
from .scenes import scene


class City(BaseModel):
    """A city."""

    name: str
    inhabitants: int


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def invoke(model: ChatOpenAI) -> Any:
    return model.invoke("hello there")


def stream(model: ChatOpenAI) -> Any:
    return list(model.stream("hello there"))


def tools(model: ChatOpenAI) -> Any:
    """One turn with a tool, as an agent loop takes it."""
    bound = model.bind_tools([weather])
    asked = HumanMessage("hello there")
    first = bound.invoke([asked])
    (call,) = first.tool_calls
    told = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    return first, bound.invoke([asked, first, told])


def structured(model: ChatOpenAI) -> Any:
    said = model.with_structured_output(City, method="json_schema").invoke("hello there")
    assert said == City(name="Rome", inhabitants=42)
    return said


def structured_by_tool(model: ChatOpenAI) -> Any:
    return model.with_structured_output(City, method="function_calling").invoke("hello there")


def by_responses(model: ChatOpenAI) -> Any:
    return model.model_copy(update={"use_responses_api": True}).invoke("hello there")


def asynchronous(model: ChatOpenAI) -> Any:
    async def talk() -> Any:
        return await model.ainvoke("hello there"), [chunk async for chunk in model.astream("hello there")]

    return asyncio.run(talk())


CASES = [invoke, stream, tools, structured, structured_by_tool, by_responses, asynchronous]


def model_at(url: str) -> ChatOpenAI:
    return ChatOpenAI(model="scripted", base_url=url, api_key="sk-agent", max_retries=0, temperature=0.5)  # type: ignore[arg-type]


def plain(result: Any) -> Any:
    """Without the ids that LangChain makes up for each run."""
    if isinstance(result, list | tuple):
        return [plain(each) for each in result]
    if not isinstance(result, BaseModel):
        return result
    return {key: value for key, value in result.model_dump().items() if key != "id" or str(value).startswith("chat")}


@pytest.mark.parametrize("ask", CASES, ids=lambda ask: ask.__name__)
def test_the_gateway_changes_nothing_and_records_everything(upstream, ask):
    with scene(upstream) as at:
        direct, through = at.both(lambda url: ask(model_at(url)))
        assert plain(through) == plain(direct)
        calls = len(upstream.requests) // 2
        sent = [asked.body for asked in upstream.requests]
        assert sent[:calls] == sent[calls:]
        spans = at.spans()
        assert len(spans) == calls
        for span, asked in zip(spans, upstream.requests[calls:], strict=True):
            assert span.status.status_code != "ERROR"
            assert span.attributes["gen_ai.request.model"] == asked.json["model"]


def test_a_turn_with_a_tool_is_recorded_with_its_token_ids(vllm):
    with scene(vllm) as at:
        _, last = tools(model_at(at.gateway_url))
        assert last.content == "You said: sunny in Rome"
        first, second = at.spans()
        assert said_by(first).tool_calls == [("weather", {"city": "Rome"})]
        assert said_by(second).response_ids == token_ids_of("You said: sunny in Rome")
        for span, asked in zip((first, second), vllm.requests, strict=True):
            is_complete(span, asked.json, has_ids=True)


def test_embeddings(upstream):
    def ask(url: str) -> Any:
        model = OpenAIEmbeddings(
            model="scripted",
            base_url=url,
            api_key="sk-agent",  # type: ignore[arg-type]
            check_embedding_ctx_length=False,
        )
        return model.embed_documents(["one", "two words"])

    with scene(upstream) as at:
        direct, through = at.both(ask)
        assert through == direct
        (span,) = at.spans()
        assert span.attributes["gen_ai.operation.name"] == "embeddings"
