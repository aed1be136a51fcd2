"""What it means that a call of a model failed: try another, or end the run.

A call that may go better next time is a `NoAnswerError`; one that will fail again every time is a `RunError` that says
what to do. Neither holds a key, whatever the server said.
"""

import re
from typing import Any

from ...errors import RunError, text_of
from .candidates import Cost

MOST_WORDS = 300  # characters of what a server said
# Behind these codes, a request or its answer was turned down for what it says: another one may pass.
_FOR_ITS_CONTENT = ("content_filter", "content_policy_violation", "invalid_prompt", "moderation_blocked")
_TOO_LONG = re.compile(r"context[ _-]?(length|window|size|overflow)|(prompt|input|request).* too (long|large)", re.I)
_KEY = re.compile(r"\b(sk-|Bearer )[^\s'\",;]+")
_PASSING = {408, 409, 425, 429}


class NoAnswerError(RunError):
    """A model gave no answer that can be used; the next call may go better. `cost` is what was paid all the same.

    `is_paid`: it did answer, so to ask once more is to pay once more.
    """

    def __init__(self, message: str, cost: Cost | None = None) -> None:
        super().__init__(message)
        self.cost, self.is_paid = cost or Cost(calls=1), cost is not None


class TooLongError(NoAnswerError):
    """What the model was shown does not fit into it: less of it may."""


def failure_of(error: Exception, *, model: str, place: str, key: str) -> RunError:
    """The error that says what a failed call means. `place` is where the model was asked, `key` what must not show."""
    from openai import APIConnectionError, APIStatusError, APITimeoutError

    who = f"{model!r} at {place}"
    if isinstance(error, APITimeoutError):
        return NoAnswerError(f"{who} did not answer in time: raise timeout= of the client to wait longer")
    if isinstance(error, APIConnectionError):
        return NoAnswerError(f"{who} cannot be reached: {_cause(error, key)}")
    if isinstance(error, APIStatusError):
        return _of_status(error, model, place, without_key(_said(error), key))
    if isinstance(error, ValueError):
        return NoAnswerError(f"{who} returned invalid JSON")
    return RunError(f"{who} cannot be called: {without_key(text_of(error), key)}")


def complains_of(error: Exception, name: str) -> bool:
    """Whether a request was refused because of this option."""
    if getattr(error, "status_code", None) not in (400, 422):
        return False
    return getattr(error, "param", None) == name or re.search(rf"\b{name}\b", _said(error)) is not None


def without_key(text: str, key: str) -> str:
    """What a server said, on one line, without keys."""
    # A short key, such as "none", is no secret, and may be a word of the text.
    hidden = text.replace(key, "***") if len(key) >= 8 else text
    line = " ".join(_KEY.sub(r"\1***", hidden).split())
    return line if len(line) <= MOST_WORDS else line[: MOST_WORDS - 1] + "…"


def _of_status(error: Any, model: str, place: str, said: str) -> RunError:
    status, words = error.status_code, f"{model!r} at {place} answered {error.status_code} ({said})"
    if _is_of_content(error):
        return NoAnswerError(f"{words}: the content of the request was refused")
    if status == 413 or (status in (400, 422) and _TOO_LONG.search(f"{said} {error.code}")):
        return TooLongError(f"{words}: the request is too long for the model")
    # The server itself says that the same will happen again: a budget is used up, a package is missing there.
    is_final = error.response.headers.get("x-should-retry") == "false" or error.code == "insufficient_quota"
    if (status in _PASSING or status >= 500) and not is_final:
        return NoAnswerError(words)
    return RunError(f"{words}: {_way_out(status, model)}")


def _is_of_content(error: Any) -> bool:
    return error.code in _FOR_ITS_CONTENT or error.type in _FOR_ITS_CONTENT


def _way_out(status: int, model: str) -> str:
    if status == 401:
        return "check the key (OPENAI_API_KEY, or the api_key of the client or of the gateway's model)"
    if status == 403:
        return f"the key has no access to {model!r}: use another model or another key"
    if status == 404:
        return f"check the name {model!r} and the base_url of the client, or add the model to the gateway"
    if status in (402, 429):
        return "raise that limit or budget, then resume the run"
    return "the same request would fail again: check the model and its settings"


def _said(error: Any) -> str:
    body = error.body
    found = body.get("message") if isinstance(body, dict) else body
    return found if isinstance(found, str) and found else text_of(error)


def _cause(error: Exception, key: str) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {without_key(text_of(cause), key)}".rstrip(": ")
