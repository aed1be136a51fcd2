"""Sends what is recorded to the user's own collector as well, where OpenTelemetry's variables name one."""

import logging
import os
import threading
from typing import TYPE_CHECKING

from ..semconv import LightningResourceAttributes as Names
from ..types import Span
from .sdk import load_sdk, loaded_sdk
from .shared import Shared
from .trace import Trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

logger = logging.getLogger(__name__)

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# A collector that does not answer must not hold up the end of a worker.
LAST_SPANS_SECONDS = 5.0


def _open(variable: str) -> "Collector | None":
    """The way to the collector; a missing package is a warning that holds the command."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        logger.warning(
            "%s is set, but spans cannot be sent there: pip install opentelemetry-exporter-otlp-proto-http", variable
        )
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return Collector(BatchSpanProcessor(OTLPSpanExporter()))


class Collector:
    """Spans in batches, from a thread of its own."""

    def __init__(self, batches: "SpanProcessor") -> None:
        self._batches = batches

    def send(self, original: "ReadableSpan", recorded: Span, trace: Trace) -> None:
        """Send the span as it was recorded: without content where the trace has none, with the ids of its attempt."""
        from opentelemetry.sdk.trace import Event, ReadableSpan

        ids = {Names.ROLLOUT_ID.value: trace.rollout_id, Names.ATTEMPT_ID.value: trace.attempt_id}
        self._batches.on_end(
            ReadableSpan(
                name=original.name,
                context=original.get_span_context(),
                parent=original.parent,
                resource=original.resource,
                attributes={**recorded.attributes, **{key: value for key, value in ids.items() if value}},
                events=[
                    Event(kept.name, kept.attributes, event.timestamp)
                    for kept, event in zip(recorded.events, original.events, strict=True)
                ],
                links=original.links,
                kind=original.kind,
                status=original.status,
                start_time=original.start_time,
                end_time=original.end_time,
                instrumentation_scope=original.instrumentation_scope,
            )
        )

    def close(self) -> None:
        """Send what is left, for a limited time."""
        closing = threading.Thread(target=self._batches.shutdown, name="sharpen-collector", daemon=True)
        closing.start()
        closing.join(LAST_SPANS_SECONDS)
        if closing.is_alive():
            logger.warning("the collector did not take the last spans within %g seconds", LAST_SPANS_SECONDS)


def _start_collecting() -> None:
    variable = next((variable for variable in VARIABLES if os.environ.get(variable)), None)
    if variable is None:
        return
    try:
        load_sdk().own.collector = _open(variable)
    except Exception as error:  # noqa: BLE001 - a wrong setting of the collector is not worth an attempt
        logger.warning("spans cannot be sent to the collector that %s names: %s", variable, error)


def _stop_collecting() -> None:
    sdk = loaded_sdk()
    if sdk is not None and sdk.own.collector is not None:
        collector, sdk.own.collector = sdk.own.collector, None
        collector.close()


collecting = Shared(_start_collecting, _stop_collecting)
