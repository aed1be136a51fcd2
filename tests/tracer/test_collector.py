"""Spans also go to the user's own collector, over real HTTP."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sharpen.emitter import emit_reward, operation
from sharpen.tracer import DummyTracer, OtelTracer

from .scenes import ListSink, run_script

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Received:
    """What the collector got."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.spans: list[Any] = []

    def attributes(self, name: str) -> dict[str, Any]:
        [span] = [span for span in self.spans if span.name == name]
        return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


@contextmanager
def a_collector() -> Iterator[tuple[str, Received]]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            received.paths.append(self.path)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    received.spans += scope.spans
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing to the screen."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def attempt(tracer: OtelTracer, sink: ListSink) -> None:
    async with tracer.trace_context(store=sink, rollout_id="ro-7", attempt_id="at-7"):
        with operation(name="plan") as step:
            step.set_input("secret")
            emit_reward(0.5)
            attributes = {"gen_ai.prompt": "secret", "gen_ai.request.model": "tiny"}
            with trace.get_tracer("agent").start_as_current_span(
                "chat tiny", kind=trace.SpanKind.CLIENT, attributes=attributes
            ) as span:
                span.add_event("gen_ai.choice", {"content": "secret"})


async def test_recorded_spans_arrive_at_the_collector_with_the_ids_of_their_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with a_collector() as (address, received):
        monkeypatch.setenv(ENDPOINT, address)
        tracer, sink = OtelTracer(), ListSink()
        async with tracer.lifespan():
            await attempt(tracer, sink)
        assert set(received.paths) == {"/v1/traces"}
    assert sorted(span.name for span in received.spans) == ["chat tiny", "sharpen.operation", "sharpen.reward"]
    assert sorted(span.span_id.hex() for span in received.spans) == sorted(span.span_id for span in sink.spans)
    assert {span.trace_id.hex() for span in received.spans} == {span.trace_id for span in sink.spans}
    chat = received.attributes("chat tiny")
    assert (chat["sharpen.rollout_id"], chat["sharpen.attempt_id"]) == ("ro-7", "at-7")
    assert chat["gen_ai.prompt"] == "secret"
    assert received.attributes("sharpen.reward")["sharpen.reward.0.value"] == 0.5
    [span] = [span for span in received.spans if span.name == "chat tiny"]
    assert span.kind == 3  # CLIENT
    assert [event.name for event in span.events] == ["gen_ai.choice"]


async def test_what_is_not_captured_does_not_reach_the_collector_either(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_collector() as (address, received):
        monkeypatch.setenv(ENDPOINT, address)
        tracer = OtelTracer(capture_content=False)
        async with tracer.lifespan():
            await attempt(tracer, ListSink())
    assert len(received.spans) == 3
    assert "secret" not in "".join(map(str, received.spans))


async def test_without_the_variable_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_collector() as (address, received):
        monkeypatch.setenv(ENDPOINT, address)
        async with OtelTracer().lifespan():
            pass
        monkeypatch.delenv(ENDPOINT)
        tracer = OtelTracer()
        async with tracer.lifespan():
            await attempt(tracer, ListSink())
        async with DummyTracer().trace_context():
            emit_reward(1.0)
    assert received.spans == []


NOBODY_THERE = """
import logging, time
logging.basicConfig()
from sharpen.emitter import emit_reward
from sharpen.tracer import OtelTracer, provider
provider.LAST_SPANS_SECONDS = 0.2
tracer, start = OtelTracer(), time.monotonic()
with tracer.lifespan():
    tracer.trace_run(emit_reward, 1.0)
print(len(tracer.get_last_trace()), time.monotonic() - start < 10)
"""


def test_a_collector_that_is_not_there_holds_up_nothing_for_long() -> None:
    done = run_script(NOBODY_THERE, environment={ENDPOINT: "http://127.0.0.1:1"})
    assert done.stdout == "1 True\n"
    assert all(part in done.stderr for part in ("WARNING:sharpen.tracer", "collector", "0.2 seconds"))


async def test_a_collector_that_is_set_up_wrongly_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    tracer = OtelTracer()
    with caplog.at_level(logging.WARNING, "sharpen"):
        async with tracer.lifespan():
            tracer.trace_run(emit_reward, 1.0)
    assert len(tracer.get_last_trace()) == 1
    assert f"the collector that {ENDPOINT} names: max_queue_size" in caplog.text


NO_EXPORTER = """
import logging, sys
logging.basicConfig()
sys.modules["opentelemetry.exporter.otlp.proto.http.trace_exporter"] = None
from sharpen.emitter import emit_reward
from sharpen.tracer import OtelTracer
tracer = OtelTracer()
with tracer.lifespan():
    tracer.trace_run(emit_reward, 1.0)
print(len(tracer.get_last_trace()))
"""


def test_a_missing_exporter_is_a_warning_with_the_command() -> None:
    done = run_script(NO_EXPORTER, environment={ENDPOINT: "http://127.0.0.1:1"})
    assert done.stdout == "1\n"
    assert "pip install opentelemetry-exporter-otlp-proto-http" in done.stderr
    assert ENDPOINT in done.stderr
