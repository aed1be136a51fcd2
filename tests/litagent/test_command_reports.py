"""What a program reports while it runs: rewards and messages by a call, spans over OTLP."""

import asyncio
import gzip
import json
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sharpen import find_reward_spans, get_message_value
from sharpen.litagent import CommandAgent
from sharpen.tracer import DummyTracer, OtelTracer, Tracer
from sharpen.types import Span
from tests.litagent.internals import MAX_BODY_BYTES, listening

from .commands import run, run_async, sh

JSON = {"content-type": "application/json"}


def test_a_reward_is_given_by_a_call_and_the_last_one_counts() -> None:
    calls = (
        'curl -sf -d \'{"reward": 0.25, "message": "half way"}\' "$SHARPEN_REWARD_URL"',
        'curl -sf -d 0.75 "$SHARPEN_REWARD_URL"',
        "echo reward: 1",
    )
    done, spans = run(sh("; ".join(calls), reward="call"))
    assert done.reward == 0.75
    assert "half way" in [get_message_value(span) for span in spans]
    done, spans = run(sh("; ".join(calls)))
    assert done.reward == 1.0  # printed after the calls
    assert len(find_reward_spans(spans)) == 3


async def recorded(
    requests: list[tuple[str, bytes, dict[str, str]]], tracer: Tracer | None = None
) -> tuple[list[int | str], list[Span]]:
    """The answers to these requests (a status, or an error's words), and the spans that came of them."""
    tracer = tracer or DummyTracer()
    answers: list[int | str] = []
    async with tracer.trace_context(rollout_id="ro-1", attempt_id="at-1", store=Sink()), listening() as url:
        for path, body, headers in requests:
            where = path.replace("URL", url)
            answers.append(await asyncio.to_thread(post, where, body, headers))
    return answers, tracer.get_last_trace()


class Sink:
    def put(self, span: Span) -> None:
        """The trace keeps them too."""


def post(url: str, body: bytes, headers: dict[str, str]) -> int | str:
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {json.load(error)['error']['message']}"


async def test_a_report_that_makes_no_sense_is_refused_with_words_and_leaves_nothing() -> None:
    wrong: dict[bytes, tuple[str, str]] = {
        b"0.5 or so": ("400", "0.5 or so"),
        b"[1]": ("400", "[1]"),
        b'{"score": 1}': ("400", "score"),
        b'{"reward": 1, "rewards": 2}': ("400", "'rewards'"),
        b'{"reward": "high", "message": "hi"}': ("400", "'high'"),
        b'{"reward": 1, "message": 3}': ("400", "int"),
        b'{"reward": {"a": 1, "b": 2}}': ("400", "2"),
        b"NaN": ("400", "nan"),
        b"true": ("400", "True"),
        b"x" * (MAX_BODY_BYTES + 1): ("413", str(MAX_BODY_BYTES)),
    }
    answers, spans = await recorded([("URL/reward", body, {}) for body in wrong])
    for answer, (status, value) in zip(map(str, answers), wrong.values(), strict=True):
        assert answer.startswith(status)
        assert value in answer
    assert spans == []


async def test_nobody_reports_without_the_secret_of_the_rollout() -> None:
    body = b'{"reward": 1}'
    tries = ["URLx/reward", "URL/../reward", "URL/rewards", "URL", "URL/v1/metrics"]
    answers, spans = await recorded([(path, body, JSON) for path in tries])
    assert [str(answer)[:3] for answer in answers] == ["404"] * len(tries)
    assert spans == []


async def test_nobody_listens_after_the_end() -> None:
    async with listening() as url:
        pass
    with pytest.raises(urllib.error.URLError):
        post(f"{url}/reward", b"1", {})


def span_request(**attributes: str) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.name, span.trace_id, span.span_id, span.parent_span_id = "step", b"t" * 16, b"s" * 8, b"p" * 8
    for key, value in attributes.items():
        pair = span.attributes.add()
        pair.key, pair.value.string_value = key.replace("__", "."), value
    return request


async def test_spans_of_a_program_belong_to_its_rollout_whatever_they_say() -> None:
    body = span_request(sharpen__rollout_id="another", colour="blue").SerializeToString()
    proto = {"content-type": "application/x-protobuf"}
    document = {
        "resourceSpans": [
            {"scopeSpans": [{"spans": [{"name": "two", "traceId": "0a" * 16, "spanId": "0b" * 8}]}]},
        ]
    }
    answers, spans = await recorded(
        [
            ("URL/v1/traces", body, proto),
            ("URL/v1/traces", gzip.compress(body), {**proto, "content-encoding": "gzip"}),
            ("URL/v1/traces", json.dumps(document).encode(), JSON),
            ("URL/v1/traces", b"rubbish", proto),
            ("URL/v1/traces", b"rubbish", {**proto, "content-encoding": "gzip"}),
            ("URL/v1/traces", body, {**proto, "content-encoding": "br"}),
        ]
    )
    assert [str(answer)[:3] for answer in answers] == ["200", "200", "200", "400", "400", "415"]
    assert {(span.rollout_id, span.attempt_id) for span in spans} == {("ro-1", "at-1")}
    assert [span.name for span in spans] == ["step", "step", "two"]
    assert spans[0].attributes["colour"] == "blue"
    assert spans[0].parent_id == (b"p" * 8).hex()


async def test_content_that_is_not_captured_is_left_out_of_a_program_s_spans() -> None:
    body = span_request(gen_ai__prompt="secret", colour="blue").SerializeToString()
    requests: list[Any] = [("URL/v1/traces", body, {"content-type": "application/x-protobuf"})]
    _, spans = await recorded(requests, OtelTracer(capture_content=False))
    assert spans[0].attributes == {"colour": "blue"}


INSTRUMENTED = """
import os
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
parent = TraceContextTextMapPropagator().extract({"traceparent": os.environ["TRACEPARENT"]})
with provider.get_tracer("mine").start_as_current_span("thinking", context=parent) as span:
    span.set_attribute("depth", 3)
print("reward: 1")
"""


@pytest.mark.slow
async def test_an_instrumented_program_writes_to_the_trace_of_its_rollout() -> None:
    agent = CommandAgent([sys.executable, "-c", INSTRUMENTED])
    done, spans = await run_async(agent, tracer=OtelTracer())
    by_name = {span.name: span for span in spans}
    assert by_name["thinking"].parent_id == by_name["sharpen.operation"].span_id
    assert by_name["thinking"].trace_id == by_name["sharpen.operation"].trace_id
    assert by_name["thinking"].attributes["depth"] == 3
    assert done.reward == 1.0
