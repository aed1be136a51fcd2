"""The metrics of a run reach the user's own collector."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from .scenes import double, small_trainer


@pytest.fixture
def collector(monkeypatch):
    """A server that takes OTLP over HTTP; gives the gauges that arrived, by name."""
    received = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/metrics":
                request = ExportMetricsServiceRequest.FromString(body)
                for resource in request.resource_metrics:
                    for scope in resource.scope_metrics:
                        for metric in scope.metrics:
                            received[metric.name] = metric.gauge.data_points[-1]
            self.send_response(200)
            self.end_headers()

        def log_message(self, format, *args):
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield received
    server.shutdown()
    server.server_close()


def test_the_last_values_arrive_with_the_folder_of_the_run(collector):
    result = small_trainer().dev(double, [1.0, 2.0, 3.0, 4.0])
    assert collector["sharpen.rollouts"].as_int == 4
    assert collector["sharpen.reward_mean"].as_double == 5.0
    assert collector["sharpen.run.train.reward_mean"].as_double == 3.0
    assert "sharpen.train.reward_mean" not in collector  # that would be the mean of one iteration
    (attribute,) = collector["sharpen.rollouts"].attributes
    assert (attribute.key, attribute.value.string_value) == ("sharpen.run", str(result.run_dir))


def test_a_collector_that_is_not_there_does_not_fail_the_run(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert small_trainer().dev(double, [1.0]).status == "succeeded"
