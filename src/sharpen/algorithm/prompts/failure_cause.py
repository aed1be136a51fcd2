"""Why a rollout failed, or a call of a model, and what follows from it.

A rollout that failed by its agent's fault counts. A call that may go better next time is a `NoAnswerError`, one that
will fail again every time a `RunError` that says what to do.

A model that could not be reached says nothing about a prompt. What an agent makes of such a failure itself is its own
affair: only what ended its rollout counts. Errors of calls hold no key, whatever the server said.
"""

import re
from collections.abc import Sequence
from typing import Any

from ...errors import RunError, text_of
from ...semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from ...types import AttemptedRollout, Rollout, Span
from ..rewards import is_lost, why_failed
from .candidates import Cost

# What SDKs raise when a model cannot be reached, is overloaded or breaks; by name, as they are not installed here.
_OF_SDKS = frozenset(
    ("APIConnectionError", "APITimeoutError", "RateLimitError", "InternalServerError", "ServiceUnavailableError",
     "OverloadedError", "ConnectError", "ConnectTimeout", "ReadTimeout", "ReadError", "RemoteProtocolError",
     "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ClientConnectorError",
     "ServerDisconnectedError")
)  # fmt: skip
_OF_GATEWAY = frozenset(("408", "425", "429", "500", "502", "503", "504", "529", "upstream_error", "incomplete"))
# A refusal of the gateway names the limit that was reached, as it is set in `Limits`; nothing else of it is read.
_LIMIT = re.compile(r"\b(?P<scope>rollout|run)_(?:calls|tokens|cost)\b")
# The message in the body of an error, as SDKs print it: "Error code: 429 - {'error': {'message': '...'}}".
_MESSAGE = re.compile(r"""['"]message['"]: (?P<quote>['"])(?P<text>.*?)(?P=quote)(?=[,}])""")


def infrastructure_fault(rollout: Rollout, spans: Sequence[Span]) -> str | None:
    """Why it is not the agent's fault that a rollout failed or was cancelled; None where it is."""
    if rollout.status == "cancelled":
        return "it was cancelled"
    if is_lost(rollout):
        return why_failed(rollout)
    if rollout.status != "failed" or not isinstance(rollout, AttemptedRollout):
        return None
    about = rollout.attempt.metadata or {}
    limit = _LIMIT.search(str(about.get("error", "")))
    if limit is not None and limit["scope"] == "rollout":  # which the agent has spent itself
        return None
    if about.get("error_type") in _OF_SDKS or _has_broken_call(spans):
        return why_failed(rollout)
    return None


def spent_limit(fault: str) -> str | None:
    """Return the message with which the gateway refused a call because a limit of the run is reached, if it did."""
    limit = _LIMIT.search(fault)
    if limit is None or limit["scope"] != "run":
        return None
    message = _MESSAGE.search(fault)
    return message["text"] if message is not None and limit[0] in message["text"] else fault


def _has_broken_call(spans: Sequence[Span]) -> bool:
    """Whether the last call that the gateway has recorded failed at the upstream."""
    calls = [span for span in spans if span.name == SHARPEN_LLM_CALL]
    if not calls or LightningLLMAttributes.REFUSED.value in calls[-1].attributes:
        return False
    return calls[-1].attributes.get("error.type") in _OF_GATEWAY


# -- calls of a model ------------------------------------------------------------------------------


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
