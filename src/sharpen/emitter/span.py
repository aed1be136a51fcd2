"""How an emitted span reaches the trace, and the forms in which readers accept spans."""

import logging
import threading
import time
from collections.abc import Sequence

from ..tracer.base import active_tracer
from ..types import Attributes, Span, SpanCoreFields, TraceStatus

logger = logging.getLogger(__name__)

AnySpan = Span | SpanCoreFields
AnySpans = Sequence[Span] | Sequence[SpanCoreFields] | Sequence[Span | SpanCoreFields]

_warned = threading.Event()


def emit(
    name: str, attributes: Attributes, *, status: TraceStatus | None = None, propagate: bool = True
) -> SpanCoreFields:
    """Record a span in the current attempt. Outside of one, or without `propagate`, it is only built."""
    tracer = active_tracer() if propagate else None
    if tracer is not None:
        return tracer.create_span(name, attributes, status=status)
    if propagate:
        _warn_once(name)
    now = time.time()
    return SpanCoreFields(name, status or TraceStatus(), attributes, now, now)


def _warn_once(name: str) -> None:
    """An agent that is called as a plain function emits often; saying it once is enough."""
    if not _warned.is_set():
        _warned.set()
        logger.warning("%s was emitted outside a rollout, so nothing records it; this is not said again", name)
