"""One call as a span with OpenTelemetry's GenAI names.

Content (messages, tools, token ids, errors in the upstream's words) stands in attributes only, never in the span's
status or name, so that a redaction of the attributes redacts all of it.
"""

import logging
import os
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from ..chat.wire import mended
from ..semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from ..types import Attributes, Span, TraceStatus
from .asking.asked import asked, other_parameters, sampling_parameters
from .asking.chat import prompt_token_ids
from .calls import Api, Call, Place, Said
from .reading.embeddings import Embedded

_log = logging.getLogger(__name__)

# Plain strings: an enum's member as a key costs ten times as much.
_OURS = {each.name: each.value for each in LightningLLMAttributes}
_PROMPT_TOKEN_IDS, _RESPONSE_TOKEN_IDS = _OURS["PROMPT_TOKEN_IDS"], _OURS["RESPONSE_TOKEN_IDS"]
_RESPONSE_LOGPROBS = _OURS["RESPONSE_LOGPROBS"]
_WEIGHTS_VERSION, _WEIGHTS_VERSIONS = _OURS["WEIGHTS_VERSION"], _OURS["WEIGHTS_VERSIONS"]
_CALL_ID, _API, _UPSTREAM, _ENGINE = _OURS["CALL_ID"], _OURS["API"], _OURS["UPSTREAM"], _OURS["ENGINE"]
_FIRST, _LAST, _COST = _OURS["TIME_TO_FIRST_TOKEN"], _OURS["TIME_TO_LAST_TOKEN"], _OURS["COST"]
_ERROR, _IS_COMPLETE, _PARAMETERS = _OURS["ERROR"], _OURS["IS_COMPLETE"], _OURS["PARAMETERS"]
_IS_ESTIMATED = _OURS["IS_USAGE_ESTIMATED"]
_ADDED, _PREVIOUS, _REFUSED = _OURS["ADDED_FIELDS"], _OURS["PREVIOUS_RESPONSE_ID"], _OURS["REFUSED"]

_OPERATIONS: dict[Api, str] = {"completions": "text_completion", "embeddings": "embeddings"}
_NO_PLACE = Place("", "")
_OK = TraceStatus("OK")
_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
# What values of the wrong shape, or nested without end, can end in.
_UNWRITABLE = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)


def attributes_of(
    call: Call,
    said: Said,
    *,
    upstream_name: str | None = None,
    engine: str | None = None,
    cost: float | None = None,
    first_seconds: float | None = None,
    last_seconds: float | None = None,
    capture_content: bool = True,
    status: int | None = None,
) -> Attributes:
    """Everything that is recorded of a call. Without `capture_content` only its numbers and names."""
    found = _call_attributes(call, engine)
    measured = {_UPSTREAM: upstream_name, _ENGINE: engine, _COST: cost, _FIRST: first_seconds, _LAST: last_seconds}
    for key, value in measured.items():
        if value is not None:
            found[key] = value
    if first_seconds is not None and call.is_stream:
        found["gen_ai.response.time_to_first_chunk"] = first_seconds
    _add_answer(found, said)
    if said.error is not None:
        found["error.type"] = _error_type(said, status)
    if capture_content:
        _add_content(found, call, said)
    return found


def span_of(call: Call, said: Said, attributes: Attributes) -> Span:
    """The span of a call; the agent's own span is its parent where the agent sent its trace along."""
    random_hex = os.urandom(24).hex()
    parent = _TRACE_PARENT.fullmatch(call.headers.get("traceparent", ""))
    last_seconds = attributes.get(_LAST)
    place = call.place or _NO_PLACE
    return Span(
        place.rollout_id,
        place.attempt_id,
        0,
        parent[1] if parent else random_hex[:32],
        random_hex[32:],
        parent[2] if parent else None,
        SHARPEN_LLM_CALL,
        _OK if said.error is None else TraceStatus("ERROR", _description(attributes)),
        attributes,
        start_time=call.start_time,
        end_time=time.time() if last_seconds is None else call.start_time + last_seconds,
    )


# -- numbers and names ---------------------------------------------------------------------------------


def _call_attributes(call: Call, engine: str | None) -> Attributes:
    request = call.request
    found: Attributes = {
        "gen_ai.operation.name": _OPERATIONS.get(call.api, "chat"),
        "gen_ai.provider.name": _provider(call.api, engine),
        "gen_ai.request.model": call.model,
        _CALL_ID: call.call_id,
        _API: call.api,
    }
    found.update(sampling_parameters({**request, **call.changes} if call.changes else request))
    if call.place is not None and call.place.role is not None:
        found["gen_ai.agent.name"] = call.place.role
    if isinstance(previous := request.get("previous_response_id"), str):
        found[_PREVIOUS] = previous
    if call.added:
        found[_ADDED] = sorted(call.added)
    return found


def _provider(api: Api, engine: str | None) -> str:
    if engine is not None and engine != "none":
        return engine
    return "anthropic" if api == "messages" else "openai"


def _add_answer(found: Attributes, said: Said) -> None:
    if said.response_id is not None:
        found["gen_ai.response.id"] = said.response_id
    if said.model is not None:
        found["gen_ai.response.model"] = said.model
    if reasons := said.finish_reasons:
        found["gen_ai.response.finish_reasons"] = reasons
    if said.usage is not None:
        found["gen_ai.usage.input_tokens"] = said.usage.input_tokens
        found["gen_ai.usage.output_tokens"] = said.usage.output_tokens
        if said.usage.cached_tokens:
            found["gen_ai.usage.cache_read.input_tokens"] = said.usage.cached_tokens
    if said.is_usage_estimated:
        found[_IS_ESTIMATED] = True
    if said.weights_version is not None:
        found[_WEIGHTS_VERSION] = said.weights_version
    if isinstance(said, Embedded) and said.dimensions is not None:
        found["gen_ai.embeddings.dimension.count"] = said.dimensions
    if not said.is_complete:
        found[_IS_COMPLETE] = False


def _error_type(said: Said, status: int | None) -> str:
    if status is not None and status >= 300:
        return str(status)
    return "upstream_error" if said.is_complete else "incomplete"


def _description(attributes: Mapping[str, Any]) -> str:
    """In the upstream's words only where they were kept."""
    if attributes.get(_ERROR):
        return str(attributes[_ERROR])
    if _REFUSED in attributes:
        return f"the gateway refused the call ({attributes[_REFUSED]})"
    return f"the call failed ({attributes.get('error.type', 'error')})"


# -- content -------------------------------------------------------------------------------------------


def _add_content(found: Attributes, call: Call, said: Said) -> None:
    if said.error is not None:
        found[_ERROR] = said.error
    _add_question(found, call)
    # A stream that was cut before its first word has said nothing.
    if any(message["parts"] or said.is_complete for message in said.output_messages):
        found["gen_ai.output.messages"] = _json(said.output_messages)
    prompt_ids = said.prompt_token_ids or prompt_token_ids(call.request)
    if prompt_ids:
        found[_PROMPT_TOKEN_IDS] = prompt_ids
    if said.response_token_ids:
        found[_RESPONSE_TOKEN_IDS] = _by_choice(said.response_token_ids)
    if said.response_logprobs:
        found[_RESPONSE_LOGPROBS] = _by_choice(said.response_logprobs)
    if said.response_weights_versions:
        found[_WEIGHTS_VERSIONS] = _by_choice(said.response_weights_versions)


def _add_question(found: Attributes, call: Call) -> None:
    try:
        found.update(_question(call))
    except _UNWRITABLE as error:
        # A request that nobody foresaw is for the upstream to judge; the words of the error might quote it.
        _log.warning("the request of call %s could not be recorded: %s", call.call_id, type(error).__name__)


def _question(call: Call) -> Attributes:
    question, rest = asked(call.api, call.request), other_parameters(call.request)
    written = (
        ("gen_ai.input.messages", question.messages),
        ("gen_ai.system_instructions", question.instructions),
        ("gen_ai.tool.definitions", question.tools),
        (_PARAMETERS, rest),
    )
    return {key: _json(value) for key, value in written if value}


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(mended(value)).decode()


def _by_choice(lists: list[list[Any]]) -> Any:
    """A span's attribute is a flat list; of several choices it is JSON."""
    return lists[0] if len(lists) == 1 else _json(lists)
