"""Loads OpenTelemetry's SDK, which takes a tenth of a second, with the first thing in the process that needs it.

That is the agent's own use of OpenTelemetry, a library with an instrumentation, an operation, or a collector.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .provider import Sdk

_loaded: list["Sdk"] = []


def loaded_sdk() -> "Sdk | None":
    """The SDK, if something has needed it so far."""
    return _loaded[0] if _loaded else None


def load_sdk() -> "Sdk":
    """The SDK; our provider becomes the global one where there is none."""
    if not _loaded:
        # First, so that two threads which import parts of OpenTelemetry take the import locks in the same order.
        import opentelemetry.trace  # noqa: F401

        from .provider import sdk

        sdk.watch_global_provider()
        _loaded.append(sdk)
    return _loaded[0]
