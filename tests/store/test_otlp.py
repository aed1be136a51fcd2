"""OTLP traces: what a real OpenTelemetry exporter sends becomes spans of a rollout."""

import asyncio
import base64
import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from sharpen.semconv import PRIMARY_REWARD_VALUE, LightningResourceAttributes as Names
from sharpen.store import LightningStoreClient
from sharpen.types import Span

from .scenes import claim_new
from .served import KINDS, curl_to, lasting, make_store, serve

PROTOBUF = "application/x-protobuf"
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(params=KINDS)
async def served(request, tmp_path):
    async with serve(make_store(request.param, tmp_path)) as opened:
        yield opened


@pytest.fixture(scope="module")
def lasting_server():
    with lasting() as server:
        yield server


@pytest.fixture
async def refused(lasting_server):
    """A client whose requests must store nothing."""
    async with curl_to(lasting_server.endpoint) as curl:
        yield curl
    assert (await lasting_server.statistics())["total_spans"] == 0


def attribute(key, **value):
    return {"key": key, "value": value}


def naming(claimed):
    """The attributes that tie a span to its attempt, as OTLP writes them."""
    return [
        attribute(Names.ROLLOUT_ID, stringValue=claimed.rollout_id),
        attribute(Names.ATTEMPT_ID, stringValue=claimed.attempt.attempt_id),
    ]


def request(*spans, resource=()):
    """An OTLP request in JSON, with spans that lack only what the test is about."""
    whole = [
        {"traceId": TRACE_ID, "spanId": f"{n:016x}", "name": f"span-{n}"} | span for n, span in enumerate(spans, 1)
    ]
    return {"resourceSpans": [{"resource": {"attributes": list(resource)}, "scopeSpans": [{"spans": whole}]}]}


async def spans_of(store, claimed) -> list[Span]:
    return list(await store.query_spans(claimed.rollout_id))


# -- a real exporter ---------------------------------------------------------------------------------


class Collector(SpanExporter):
    """Keeps what the SDK hands to its exporters."""

    def __init__(self):
        self.spans = []

    def export(self, spans):
        self.spans += spans
        return SpanExportResult.SUCCESS


class Traced:
    """An OpenTelemetry SDK that exports to the store every span as soon as it has ended."""

    def __init__(self, endpoint, resource, **options):
        self.exporter = OTLPSpanExporter(endpoint=endpoint, timeout=30, **options)
        self.collected = Collector()
        self.provider = TracerProvider(resource=Resource.create(resource), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.collected))
        self.tracer = self.provider.get_tracer("test")

    async def flush(self) -> SpanExportResult:
        """Send all spans from a thread, as the SDK does."""
        result = await asyncio.to_thread(self.exporter.export, self.collected.spans)
        self.provider.shutdown()
        self.exporter.shutdown()
        return result


def run_an_agent(traced):
    """Two spans with all that a span can have."""
    remote = SpanContext(0xABC, 0xDEF, True, TraceFlags(1))
    with traced.tracer.start_as_current_span("agent", attributes={"question": "6 * 7 ☃"}) as parent:
        links = [Link(remote, {"why": "asked by"})]
        child = traced.tracer.start_span("llm call", links=links, context=set_span_in_context(parent))
        child.set_attributes(
            {"tokens": 12, "temperature": 0.5, "stream": True, "stops": ["a", "b"], "ids": [1, 2], "logprobs": [-0.5]}
        )
        child.add_event("first token", {"after": 0.25}, timestamp=1_700_000_000_000_000_000)
        child.set_status(Status(StatusCode.ERROR, "the model was tired"))
        child.end()
        parent.set_status(StatusCode.OK)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_spans_of_a_real_exporter_arrive_as_the_sdk_has_them(served, compression):
    claimed = await claim_new(served.store)
    client = LightningStoreClient(served.server.endpoint)
    resource = {
        Names.ROLLOUT_ID: claimed.rollout_id,
        Names.ATTEMPT_ID: claimed.attempt.attempt_id,
        "service.name": "me",
    }
    traced = Traced(client.otlp_traces_endpoint(), resource, compression=compression)
    run_an_agent(traced)
    assert await traced.flush() is SpanExportResult.SUCCESS
    expected = [
        Span.from_opentelemetry(span, claimed.rollout_id, claimed.attempt.attempt_id, number)
        for number, span in enumerate(traced.collected.spans, 1)
    ]
    assert await spans_of(client, claimed) == expected
    call, agent = expected
    assert (call.name, call.parent_id, call.status.status_code) == ("llm call", agent.span_id, "ERROR")
    assert (call.links[0].context.is_remote, call.links[0].attributes) == (True, {"why": "asked by"})
    assert call.events[0].timestamp == 1_700_000_000.0
    assert call.start_time <= call.end_time
    assert (await served.store.get_rollout_by_id(claimed.rollout_id)).status == "running"
    await client.close()


async def test_sending_the_same_spans_again_stores_them_once(served):
    claimed = await claim_new(served.store)
    traced = Traced(
        served.server.otlp_traces_endpoint(),
        {Names.ROLLOUT_ID: claimed.rollout_id, Names.ATTEMPT_ID: claimed.attempt.attempt_id},
    )
    run_an_agent(traced)
    for _ in range(2):
        assert await asyncio.to_thread(traced.exporter.export, traced.collected.spans) is SpanExportResult.SUCCESS
    assert len(await spans_of(served.store, claimed)) == 2
    traced.provider.shutdown()
    traced.exporter.shutdown()


async def test_an_exporter_needs_the_token():
    async with serve(token="t0ken") as served:
        claimed = await claim_new(served.store)
        for headers, result in (
            ({}, SpanExportResult.FAILURE),
            ({"authorization": "Bearer wrong"}, SpanExportResult.FAILURE),
            ({"authorization": "Bearer t0ken"}, SpanExportResult.SUCCESS),
        ):
            assert await spans_of(served.store, claimed) == []
            resource = {Names.ROLLOUT_ID: claimed.rollout_id, Names.ATTEMPT_ID: claimed.attempt.attempt_id}
            traced = Traced(served.server.otlp_traces_endpoint(), resource, headers=headers)
            run_an_agent(traced)
            assert await traced.flush() is result
        assert len(await spans_of(served.store, claimed)) == 2


# -- JSON by hand ------------------------------------------------------------------------------------


async def test_spans_written_in_json_are_stored(served):
    claimed = await claim_new(served.store)
    span = {
        "traceId": TRACE_ID.upper(),
        "spanId": SPAN_ID,
        "parentSpanId": "00f067aa0ba902b7",
        "traceState": "vendor=x, other=y=z",
        "name": "tool call",
        "kind": "SPAN_KIND_CLIENT",
        "startTimeUnixNano": "1700000000500000000",
        "endTimeUnixNano": 1700000001500000000,
        "attributes": [
            *naming(claimed),
            attribute("text", stringValue="☃"),
            attribute("int", intValue="9007199254740993"),
            attribute("float", doubleValue=0.5),
            attribute("bool", boolValue=False),
            attribute("list", arrayValue={"values": [{"intValue": 1}, {"stringValue": "two"}]}),
            attribute("dict", kvlistValue={"values": [attribute("inner", boolValue=True)]}),
            attribute("bytes", bytesValue=base64.b64encode(b"\x00\xff").decode()),
            attribute("nothing"),
        ],
        "events": [{"name": "seen", "timeUnixNano": "1700000001000000000", "attributes": [attribute("n", intValue=1)]}],
        "links": [{"traceId": TRACE_ID, "spanId": SPAN_ID, "traceState": "a=1"}],
        "status": {"code": 2, "message": "late"},
        "aFieldOfTomorrow": {"is": "ignored"},
    }
    reply = await served.curl("POST", "/v1/traces", request(span, resource=[attribute("host.name", stringValue="h")]))
    assert (reply.status, reply.json) == (200, {})
    (found,) = await spans_of(served.store, claimed)
    assert (found.trace_id, found.span_id, found.parent_id) == (TRACE_ID, SPAN_ID, "00f067aa0ba902b7")
    assert found.context.trace_state == {"vendor": "x", "other": "y=z"}
    assert (found.name, found.start_time, found.end_time) == ("tool call", 1700000000.5, 1700000001.5)
    given = {name: value for name, value in found.attributes.items() if name not in list(Names)}
    assert given == {
        "text": "☃", "int": 9007199254740993, "float": 0.5, "bool": False, "list": [1, "two"],
        "dict": {"inner": True}, "bytes": "AP8=", "nothing": None,
    }  # fmt: skip
    assert [(event.name, event.timestamp, event.attributes) for event in found.events] == [
        ("seen", 1700000001.0, {"n": 1})
    ]
    assert (found.links[0].context.span_id, found.links[0].context.trace_state) == (SPAN_ID, {"a": "1"})
    assert (found.status.status_code, found.status.description) == ("ERROR", "late")
    assert found.resource.attributes == {"host.name": "h"}


async def test_times_that_are_not_known_are_none(served):
    claimed = await claim_new(served.store)
    await served.curl("POST", "/v1/traces", request({"events": [{"name": "e"}]}, resource=naming(claimed)))
    (found,) = await spans_of(served.store, claimed)
    assert (found.start_time, found.end_time, found.events[0].timestamp, found.parent) == (None, None, None, None)


async def test_a_span_names_its_attempt_itself_or_by_its_resource(served):
    first, second = await claim_new(served.store, worker_id="w-1"), await claim_new(served.store)
    body = request({}, {"attributes": naming(second)}, {}, resource=naming(first))
    assert (await served.curl("POST", "/v1/traces", body)).json == {}
    assert [span.name for span in await spans_of(served.store, first)] == ["span-1", "span-3"]
    assert [span.name for span in await spans_of(served.store, second)] == ["span-2"]


async def test_a_span_may_bring_its_number_and_its_reward(served):
    claimed = await claim_new(served.store)
    own = [attribute(Names.SPAN_SEQUENCE_ID, intValue=7), attribute(PRIMARY_REWARD_VALUE, doubleValue=0.25)]
    await served.curl("POST", "/v1/traces", request({"attributes": own}, {}, resource=naming(claimed)))
    assert sorted(span.sequence_id for span in await spans_of(served.store, claimed)) == [7, 8]
    assert (await served.store.get_rollout_by_id(claimed.rollout_id)).reward == 0.25


@pytest.mark.parametrize("number", [0, -3, 2**53, 2**63 - 1])
async def test_a_number_that_cannot_be_one_is_given_by_the_store(served, number):
    claimed = await claim_new(served.store)
    own = [attribute(Names.SPAN_SEQUENCE_ID, intValue=str(number))]
    assert (await served.curl("POST", "/v1/traces", request({"attributes": own}, resource=naming(claimed)))).json == {}
    assert [span.sequence_id for span in await spans_of(served.store, claimed)] == [1]


# -- spans that cannot be stored ---------------------------------------------------------------------


async def test_spans_that_belong_to_nobody_are_counted_and_the_others_stored(served):
    claimed = await claim_new(served.store)
    unknown = [attribute(Names.ROLLOUT_ID, stringValue="nobody"), attribute(Names.ATTEMPT_ID, stringValue="nobody")]
    body = request({"attributes": unknown}, {"attributes": naming(claimed)}, {"attributes": unknown}, {})
    reply = await served.curl("POST", "/v1/traces", body)
    partial = reply.json["partialSuccess"]
    assert (reply.status, partial["rejectedSpans"]) == (200, "3")
    assert "nobody" in partial["errorMessage"]
    assert [span.name for span in await spans_of(served.store, claimed)] == ["span-2"]


async def test_the_same_is_said_in_protobuf(served):
    claimed = await claim_new(served.store)
    message = ExportTraceServiceRequest()
    spans = message.resource_spans.add().scope_spans.add().spans
    for number, rollout_id in enumerate(("nobody", claimed.rollout_id), 1):
        span = spans.add(name="call", trace_id=b"t" * 16, span_id=bytes([number] * 8))
        for key, value in ((Names.ROLLOUT_ID, rollout_id), (Names.ATTEMPT_ID, claimed.attempt.attempt_id)):
            span.attributes.add(key=key).value.string_value = value
    reply = await served.curl(
        "POST", "/v1/traces", data=message.SerializeToString(), headers={"content-type": PROTOBUF}
    )
    assert (reply.status, reply.headers["content-type"]) == (200, PROTOBUF)
    partial = ExportTraceServiceResponse.FromString(reply.body).partial_success
    assert partial.rejected_spans == 1
    assert "nobody" in partial.error_message
    assert len(await spans_of(served.store, claimed)) == 1


@pytest.mark.parametrize("lacking", [{"spanId": ""}, {"traceId": ""}], ids=str)
async def test_a_span_without_ids_is_counted(served, lacking):
    claimed = await claim_new(served.store)
    reply = await served.curl("POST", "/v1/traces", request(lacking, {}, resource=naming(claimed)))
    assert reply.json["partialSuccess"]["rejectedSpans"] == "1"
    assert "span-1" in reply.json["partialSuccess"]["errorMessage"]
    assert [span.name for span in await spans_of(served.store, claimed)] == ["span-2"]


async def test_a_span_that_names_no_attempt_is_told_how(refused):
    reply = await refused("POST", "/v1/traces", request({}))
    assert reply.json["partialSuccess"]["rejectedSpans"] == "1"
    for name in (Names.ROLLOUT_ID, Names.ATTEMPT_ID):
        assert name in reply.json["partialSuccess"]["errorMessage"]


async def test_a_reward_that_is_no_number_is_counted_and_changes_nothing(served):
    claimed = await claim_new(served.store)
    own = [attribute(PRIMARY_REWARD_VALUE, stringValue="a lot")]
    reply = await served.curl("POST", "/v1/traces", request({"attributes": own}, resource=naming(claimed)))
    assert reply.json["partialSuccess"]["rejectedSpans"] == "1"
    assert await spans_of(served.store, claimed) == []
    assert (await served.store.get_rollout_by_id(claimed.rollout_id)).reward is None


# -- bodies that are wrong ---------------------------------------------------------------------------


async def test_a_zipped_body_is_unpacked(served):
    claimed = await claim_new(served.store)
    body = gzip.compress(json.dumps(request({}, resource=naming(claimed))).encode())
    for spelling in ("gzip", "GZIP"):
        reply = await served.curl("POST", "/v1/traces", data=body, headers={"content-encoding": spelling})
        assert (reply.status, reply.json) == (200, {})
    assert len(await spans_of(served.store, claimed)) == 1


@pytest.mark.parametrize(
    "body", [b"", b"{}", gzip.compress(b"{}", mtime=0)[:-9], gzip.compress(b"{}", mtime=0)[:5]], ids=repr
)
async def test_a_body_that_is_not_what_its_encoding_says_is_400(refused, body):
    reply = await refused("POST", "/v1/traces", data=body, headers={"content-encoding": "gzip"})
    assert (reply.status, reply.error[0]) == (400, "InvalidInputError")
    assert "gzip" in reply.error[1]


async def test_an_unknown_encoding_is_415(refused):
    reply = await refused("POST", "/v1/traces", data=b"{}", headers={"content-encoding": "br"})
    assert (reply.status, reply.error[0]) == (415, "InvalidInputError")
    assert "'br'" in reply.error[1]


async def test_an_unknown_type_is_415(refused):
    reply = await refused("POST", "/v1/traces", data=b"{}", headers={"content-type": "text/plain"})
    assert (reply.status, reply.error[0]) == (415, "InvalidInputError")
    assert PROTOBUF in reply.error[1]


def inside(span) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b"1" * 5000,
        b'{"resourceSpans": ' + b"1" * 5000 + b"}",
        b'{"resourceSpans": 1}',
        b'{"resourceSpans": [1]}',
        b'{"resourceSpans": {"a": 1}}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "\\ud800"}]}]}]}',
        inside({"traceId": 5}),
        inside({"traceId": "not hex"}),
        inside({"spanId": "abc"}),
        inside({"parentSpanId": None, "name": 7}),
        inside({"startTimeUnixNano": "noon"}),
        inside({"startTimeUnixNano": -1}),
        inside({"startTimeUnixNano": 1e30}),
        inside({"attributes": [{"key": "a", "value": {"intValue": "9" * 30}}]}),
        inside({"attributes": {"a": 1}}),
    ],
    ids=lambda body: repr(body[:50]),
)
async def test_a_malformed_body_in_json_is_400(refused, body):
    reply = await refused("POST", "/v1/traces", data=body)
    assert (reply.status, reply.error[0]) == (400, "InvalidInputError")
    assert "OTLP" in reply.error[1]


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05abc", b"{}", b"\x00" * 10], ids=repr)
async def test_a_malformed_body_in_protobuf_is_400(refused, body):
    reply = await refused("POST", "/v1/traces", data=body, headers={"content-type": PROTOBUF})
    assert (reply.status, reply.error[0]) == (400, "InvalidInputError")
    assert "OTLP" in reply.error[1]


async def test_an_empty_request_stores_nothing(refused):
    assert (await refused("POST", "/v1/traces", {})).json == {}
    reply = await refused("POST", "/v1/traces", data=b"", headers={"content-type": PROTOBUF})
    assert (reply.status, reply.body) == (200, b"")


# -- whatever comes ----------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
HEX = st.binary(max_size=9).map(bytes.hex)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "stringValue": SCALARS,
        "intValue": SCALARS,
        "doubleValue": SCALARS | st.sampled_from(["NaN", "Infinity", "-Infinity"]),
        "arrayValue": ANYTHING,
        "kvlistValue": ANYTHING,
        "bytesValue": SCALARS,
    },
)
KEYS = st.sampled_from([*Names, PRIMARY_REWARD_VALUE, "x"]) | SCALARS
SPANS = st.fixed_dictionaries(
    {},
    optional={
        "traceId": HEX | SCALARS,
        "spanId": HEX | SCALARS,
        "parentSpanId": HEX | SCALARS,
        "name": SCALARS,
        "startTimeUnixNano": SCALARS | st.integers(0, 2**64 - 1),
        "status": ANYTHING | st.fixed_dictionaries({"code": SCALARS}),
        "events": ANYTHING,
        "links": ANYTHING,
        "flags": SCALARS,
        "attributes": ANYTHING
        | st.lists(st.fixed_dictionaries({}, optional={"key": KEYS, "value": VALUES | ANYTHING}), max_size=3),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=ANYTHING
    | st.lists(SPANS, max_size=3).map(lambda spans: {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}),
    raw=st.none() | st.binary(max_size=40),
    is_named=st.booleans(),
)
async def test_no_body_is_a_server_error(traces, body, raw, is_named):
    served, claimed = traces
    if isinstance(body, dict) and is_named:
        for group in body.get("resourceSpans") or []:
            if isinstance(group, dict):
                group["resource"] = {"attributes": naming(claimed)}
    for data, content_type in ((json.dumps(body).encode(), "application/json"), (raw or b"", PROTOBUF)):
        reply = await served.curl("POST", "/v1/traces", data=data, headers={"content-type": content_type})
        assert reply.status in (200, 400), reply.body
    assert (await served.curl("GET", f"/v1/rollouts/{claimed.rollout_id}/spans")).status == 200


@pytest.fixture
async def traces(served):
    return served, await claim_new(served.store)
