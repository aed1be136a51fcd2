"""Whose fault it is that a rollout failed: that of the agent and its prompt, or that of infrastructure.

A model that could not be reached says nothing about a prompt. What an agent makes of such a failure itself is its own
affair: only what ended its rollout counts.
"""

import re
from collections.abc import Sequence

from ...semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from ...types import AttemptedRollout, Rollout, Span
from ..rewards import is_lost, why_failed

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
