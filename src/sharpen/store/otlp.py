"""OTLP/HTTP traces: what an OpenTelemetry exporter sends, turned into spans of rollouts.

A span names its rollout and attempt in its own attributes or in those of its resource. Spans that name none, or
one that is unknown, are counted as rejected in the answer, as the protocol has it; the others are stored.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from ..errors import InvalidInputError
from ..semconv import LightningResourceAttributes as Names
from ..types import Event, Link, OtelResource, Span, SpanContext, TraceStatus
from ..types.spans import MAX_SEQUENCE_ID
from .base import LightningStore

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
_STATUS = ("UNSET", "OK", "ERROR")
_IS_REMOTE = 0x200


def parse(body: bytes, content_type: str) -> ExportTraceServiceRequest:
    """The request in either of its two forms."""
    try:
        if content_type == PROTOBUF:
            return ExportTraceServiceRequest.FromString(body)
        document = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError("the body must be a JSON object with resourceSpans")
        return ParseDict(_with_binary_ids(document), ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except (DecodeError, ParseError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"not an OTLP trace request: {error}") from None


def _with_binary_ids(value: Any) -> Any:
    """OTLP writes ids as hex, where protobuf's own JSON expects base64."""
    if isinstance(value, list):
        return [_with_binary_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _hex_to_base64(key, item) if key in ("traceId", "spanId", "parentSpanId") else _with_binary_ids(item)
        for key, item in value.items()
    }


def _hex_to_base64(key: str, text: Any) -> str:
    try:
        return base64.b64encode(bytes.fromhex(text)).decode()
    except (TypeError, ValueError):
        raise ValueError(f"{key} is {text!r}: use a hexadecimal id") from None


def answer(rejected: int, reason: str, content_type: str) -> bytes:
    """The protocol's answer: empty when all is well."""
    response = ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = reason
    if content_type == PROTOBUF:
        return bytes(response.SerializeToString())
    return MessageToJson(response, indent=None).encode()


def read_spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    """All spans, those that name no rollout with empty ids."""
    for group in request.resource_spans:
        resource = OtelResource(_attributes(group.resource.attributes), group.schema_url)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield _span(span, resource)


def _span(span: Any, resource: OtelResource) -> Span:
    attributes = _attributes(span.attributes)
    named = resource.attributes | attributes
    number = named.get(Names.SPAN_SEQUENCE_ID, 0)
    context = SpanContext(span.trace_id.hex(), span.span_id.hex(), False, _trace_state(span.trace_state))
    parent = span.parent_span_id.hex() or None
    return Span(
        str(named.get(Names.ROLLOUT_ID, "")),
        str(named.get(Names.ATTEMPT_ID, "")),
        number if isinstance(number, int) and 0 < number <= MAX_SEQUENCE_ID else 0,
        context.trace_id,
        context.span_id,
        parent,
        span.name,
        TraceStatus(_STATUS[span.status.code if 0 <= span.status.code < 3 else 0], span.status.message or None),  # type: ignore[arg-type]
        attributes,
        [Event(e.name, _attributes(e.attributes), _seconds(e.time_unix_nano)) for e in span.events],
        [_link(link) for link in span.links],
        _seconds(span.start_time_unix_nano),
        _seconds(span.end_time_unix_nano),
        context,
        None if parent is None else SpanContext(context.trace_id, parent, bool(span.flags & _IS_REMOTE)),
        resource,
    )


def _link(link: Any) -> Link:
    is_remote = bool(link.flags & _IS_REMOTE)
    context = SpanContext(link.trace_id.hex(), link.span_id.hex(), is_remote, _trace_state(link.trace_state))
    return Link(context, _attributes(link.attributes))


def _trace_state(text: str) -> dict[str, str]:
    """`a=1,b=2` as W3C writes it."""
    pairs = (part.strip().partition("=") for part in text.split(","))
    return {key: value for key, _, value in pairs if key}


def _seconds(nanoseconds: int) -> float | None:
    """The protocol writes an unknown time as 0."""
    return nanoseconds / 1e9 if nanoseconds else None


def _attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind)


def _missing_ids(span: Span) -> str | None:
    if not span.trace_id or not span.span_id:
        return f"span {span.name!r} has no trace id or no span id"
    if not span.rollout_id or not span.attempt_id:
        return (
            f"span {span.name!r} does not name its rollout and attempt: set the attributes {Names.ROLLOUT_ID} "
            f"and {Names.ATTEMPT_ID} on it or on its resource"
        )
    return None


async def store_traces(store: LightningStore, body: bytes, content_type: str) -> bytes:
    """Store what can be stored, and say what could not."""
    groups: dict[tuple[str, str], list[Span]] = {}
    rejected, reason = 0, ""
    for span in read_spans(parse(body, content_type)):
        if missing := _missing_ids(span):
            rejected, reason = rejected + 1, missing
        else:
            groups.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    for spans in groups.values():
        try:
            await store.add_many_spans(spans)
        except InvalidInputError as error:
            rejected, reason = rejected + len(spans), str(error)
    return answer(rejected, reason, content_type)
