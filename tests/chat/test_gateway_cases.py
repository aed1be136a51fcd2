"""Every request and answer that the gateway's own readers were tested with, read by `sharpen.chat`.

`gateway_cases.jsonl` holds what the gateway of 0.1 made of them: the attributes of a request byte for byte, and what it
found in an answer. Some bodies were sent by the SDKs of OpenAI and Anthropic. Words of errors are not compared.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.chat.internals import ParsedResponse, ResponseReader, parse_request, request_attributes

CASES = [
    msgspec.json.decode(line) for line in (Path(__file__).parent / "gateway_cases.jsonl").read_bytes().splitlines()
]


def numbered(kind: str) -> list[Any]:
    cases = [case for case in CASES if case["kind"] == kind]
    return [pytest.param(case, id=f"{number}-{case['test']}") for number, case in enumerate(cases)]


@pytest.mark.parametrize("case", numbered("request"))
def test_a_request_has_the_attributes_that_the_gateway_wrote(case: dict[str, Any]) -> None:
    assert request_attributes(parse_request(case["api"], case["request"])).items() >= case["expected"].items()


@pytest.mark.parametrize("case", numbered("response"))
@pytest.mark.parametrize("size", [1, 7, 1_000_000])
def test_an_answer_says_what_the_gateway_read(case: dict[str, Any], size: int) -> None:
    reader, body = ResponseReader(case["api"], is_stream=case["is_stream"]), case["body"].encode()
    for start in range(0, len(body), size):
        reader.feed(body[start : start + size])
    assert summary(reader.finish(case["is_complete"])) == case["expected"]


def summary(response: ParsedResponse) -> dict[str, Any]:
    """What is there to compare; nothing stands for what is empty."""
    by_choice = {
        "ids": [choice.token_ids for choice in response.choices],
        "logprobs": [choice.logprobs for choice in response.choices],
        "wvs": [choice.weights_versions for choice in response.choices],
    }
    found = {
        "id": response.id,
        "model": response.model,
        "messages": msgspec.to_builtins(response.messages),
        "usage": msgspec.to_builtins(response.usage),
        "prompt": response.prompt_token_ids,
        "wv": response.weights_version,
        "dims": response.dimensions,
        "error": kind_of_error(response.error),
        "begun": response.has_begun,
        **{name: lists for name, lists in by_choice.items() if any(lists)},
    }
    kept = {name: value for name, value in found.items() if value not in (None, [], False)}
    return {**kept, "complete": response.is_complete}


def kind_of_error(error: str | None) -> str | None:
    """An error of the upstream in its own words, any other by its kind."""
    if error is None or error.startswith("the upstream failed"):
        return error
    return "malformed" if "malformed" in error else "incomplete"
