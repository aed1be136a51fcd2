"""Traces written by hand, as short as they can be read."""

import json

from sharpen.semconv import (
    AGL_OPERATION,
    AGL_REWARD,
    PRIMARY_REWARD_VALUE,
    SHARPEN_LLM_CALL,
    LightningLLMAttributes,
    LightningSpanAttributes,
)
from sharpen.types import Span, TraceStatus

TRACE = "t" * 32


def span(name, start=None, end=None, *, id=None, parent=None, number=0, attempt="at-1", error=False, **attributes):
    """A span; its id is its name unless it is given one. Double underscores stand for dots."""
    return Span(
        "ro-1",
        attempt,
        number,
        TRACE,
        id or name,
        parent,
        name,
        TraceStatus("ERROR" if error else "UNSET"),
        {key.replace("__", "."): value for key, value in attributes.items()},
        start_time=start,
        end_time=start if end is None else end,
    )


def llm(id, start=None, end=None, *, said=None, response_id=None, **more):
    """An LLM call as the GenAI conventions have it; `said` is the question, and the answer is the same in capitals."""
    attributes = {"gen_ai__operation__name": "chat"}
    if said is not None:
        attributes["gen_ai__input__messages"] = messages("user", said)
        attributes["gen_ai__output__messages"] = messages("assistant", said.upper())
    if response_id is not None:
        attributes["gen_ai__response__id"] = response_id
    return span("chat small", start, end, id=id, **attributes | more)


def gateway(id, start, end, tokens, **more):
    """The same call as the gateway writes it: flat, with what was sampled."""
    made = span(SHARPEN_LLM_CALL, start, end, id=id, **{"gen_ai__operation__name": "chat"} | more)
    made.attributes[LightningLLMAttributes.PROMPT_TOKEN_IDS.value] = tokens[0]
    made.attributes[LightningLLMAttributes.RESPONSE_TOKEN_IDS.value] = tokens[1]
    return made


def operation(name, start, end, **more):
    made = span(AGL_OPERATION, start, end, id=more.pop("id", name), **more)
    made.attributes[LightningSpanAttributes.OPERATION_NAME.value] = name
    return made


def reward(value, at=None, **more):
    made = span(AGL_REWARD, at, id=more.pop("id", f"reward-{value}-{at}"), **more)
    made.attributes[PRIMARY_REWARD_VALUE] = value
    return made


def scoring(name, start, end, value, **more):
    """An operation that carries the reward which it found."""
    made = operation(name, start, end, **more)
    made.attributes[PRIMARY_REWARD_VALUE] = value
    return made


def messages(role, text):
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
