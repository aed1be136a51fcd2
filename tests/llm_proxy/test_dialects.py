"""What the gateway says itself, in the words of both APIs."""

import json

import pytest

from tests.llm_proxy.internals import Refusal, error_body, error_headers, models_body


@pytest.mark.parametrize(
    ("status", "openai", "anthropic"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (404, "invalid_request_error", "not_found_error"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error"),
        (502, "api_error", "api_error"),
        (503, "api_error", "overloaded_error"),
    ],
)
def test_an_error_has_the_form_of_the_api_that_was_spoken(status: int, openai: str, anthropic: str) -> None:
    refusal = Refusal(status, "why", "because")
    assert json.loads(error_body(refusal, "openai")) == {
        "error": {"message": "because", "type": openai, "param": None, "code": "why"}
    }
    assert json.loads(error_body(refusal, "anthropic")) == {
        "type": "error",
        "error": {"type": anthropic, "message": "because"},
    }


def test_headers_tell_when_and_whether_to_come_back() -> None:
    plain = dict(error_headers(Refusal(400, "a", "b")))
    assert plain == {b"content-type": b"application/json"}
    later = dict(error_headers(Refusal(429, "a", "b", retry_after_seconds=2.2, should_retry=True)))
    assert (later[b"retry-after"], later[b"x-should-retry"]) == (b"3", b"true")
    never = dict(error_headers(Refusal(429, "a", "b", retry_after_seconds=0, should_retry=False)))
    assert (never[b"retry-after"], never[b"x-should-retry"]) == (b"1", b"false")


def test_an_empty_list_of_models_is_a_list() -> None:
    assert json.loads(models_body([])) == {
        "object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None,
    }  # fmt: skip
