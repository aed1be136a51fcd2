"""Configurations and bodies of spans as JSON, as every store with columns keeps them."""

from functools import lru_cache
from typing import Any

import msgspec

from ..types import Event, Link, OtelResource, RolloutConfig, Span, SpanContext, TraceStatus

_default_config = RolloutConfig()


def packed_config(config: RolloutConfig) -> str | None:
    """None for the default, which most rollouts have."""
    return None if config is _default_config or config == _default_config else msgspec.json.encode(config).decode()


def unpacked_config(text: str | None) -> RolloutConfig:
    return _default_config if text is None else _decoded_config(text)


@lru_cache(maxsize=256)
def _decoded_config(text: str) -> RolloutConfig:
    return msgspec.json.decode(text, type=RolloutConfig)


class SpanBody(msgspec.Struct, omit_defaults=True):
    """What a span holds beside its columns."""

    status: TraceStatus = TraceStatus()
    attributes: dict[str, Any] = {}
    events: list[Event] = []
    links: list[Link] = []
    context: SpanContext | None = None
    parent: SpanContext | None = None
    resource: OtelResource = OtelResource()


def body_of(span: Span) -> SpanBody:
    return SpanBody(span.status, span.attributes, span.events, span.links, span.context, span.parent, span.resource)


unpacked_body = msgspec.json.Decoder(SpanBody).decode
