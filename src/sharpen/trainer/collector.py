"""Sends the metrics of a run to the user's own collector, where OpenTelemetry's variables name one."""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics import MeterProvider

log = logging.getLogger(__name__)
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
EVERY_SECONDS = 5.0
LAST_SECONDS = 5.0  # a collector that does not answer must not hold up the end of a run


def open_collector(run_dir: str | None) -> "MetricsCollector | None":
    """The way to the collector; None where there is none. A missing package is a warning that holds the command."""
    variable = next((name for name in VARIABLES if os.environ.get(name)), None)
    if variable is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        log.warning("%s is set, but exporting metrics needs another package: pip install 'sharpen[otel]'", variable)
        return None
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=EVERY_SECONDS * 1000)
    return MetricsCollector(MeterProvider([reader], shutdown_on_exit=False), run_dir)


class MetricsCollector:
    """Every metric is a gauge, `sharpen.<name>`, with the folder of the run as its attribute."""

    def __init__(self, provider: "MeterProvider", run_dir: str | None) -> None:
        self._provider = provider
        self._meter: Meter = provider.get_meter("sharpen")
        self._gauges: dict[str, Any] = {}
        self._attributes = {} if run_dir is None else {"sharpen.run": run_dir}

    def record(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float):
                gauge = self._gauges.get(name) or self._gauges.setdefault(
                    name, self._meter.create_gauge(f"sharpen.{name.replace('/', '.')}")
                )
                gauge.set(value, self._attributes)

    def close(self) -> None:
        """Send the last values."""
        self._provider.shutdown(timeout_millis=LAST_SECONDS * 1000)
