"""Sharpen makes agents better: their prompts, their weights, their policies.

Public names are loaded when they are first used, so that `import sharpen` costs nothing.
"""

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .components import (
        ComponentSpec as ComponentSpec,
        build_component as build_component,
        instantiate_component as instantiate_component,
        instantiate_from_spec as instantiate_from_spec,
        load_class as load_class,
        register as register,
    )
    from .errors import (
        SharpenError as SharpenError,
    )
    from .semconv import (
        AGL_ANNOTATION as AGL_ANNOTATION,
        AGL_EXCEPTION as AGL_EXCEPTION,
        AGL_MESSAGE as AGL_MESSAGE,
        AGL_OBJECT as AGL_OBJECT,
        AGL_OPERATION as AGL_OPERATION,
        AGL_REWARD as AGL_REWARD,
        AGL_VIRTUAL as AGL_VIRTUAL,
        LightningResourceAttributes as LightningResourceAttributes,
        LightningSpanAttributes as LightningSpanAttributes,
    )
    from .store import (
        InMemoryLightningStore as InMemoryLightningStore,
        LightningStore as LightningStore,
        LightningStoreCapabilities as LightningStoreCapabilities,
        LightningStoreClient as LightningStoreClient,
        LightningStoreServer as LightningStoreServer,
        LightningStoreStatistics as LightningStoreStatistics,
        LightningStoreThreaded as LightningStoreThreaded,
        SQLiteStore as SQLiteStore,
    )
    from .types import (
        LLM as LLM,
        UNSET as UNSET,
        Attempt as Attempt,
        AttemptedRollout as AttemptedRollout,
        AttemptStatus as AttemptStatus,
        Dataset as Dataset,
        EnqueueRolloutRequest as EnqueueRolloutRequest,
        Event as Event,
        FinishedRollouts as FinishedRollouts,
        Hook as Hook,
        Link as Link,
        NamedResources as NamedResources,
        OtelResource as OtelResource,
        PaginatedResult as PaginatedResult,
        ParallelWorkerBase as ParallelWorkerBase,
        PromptTemplate as PromptTemplate,
        ProxyLLM as ProxyLLM,
        Resource as Resource,
        ResourcesUpdate as ResourcesUpdate,
        Rollout as Rollout,
        RolloutConfig as RolloutConfig,
        RolloutMode as RolloutMode,
        RolloutRawResult as RolloutRawResult,
        RolloutStatus as RolloutStatus,
        Span as Span,
        SpanContext as SpanContext,
        SpanCoreFields as SpanCoreFields,
        StoredSpans as StoredSpans,
        TaskInput as TaskInput,
        TraceStatus as TraceStatus,
        Triplet as Triplet,
        Worker as Worker,
        WorkerHeartbeat as WorkerHeartbeat,
        WorkerStatus as WorkerStatus,
    )

_ROOMS: dict[str, tuple[str, ...]] = {
    "errors": ("SharpenError",),
    "semconv": (
        "AGL_ANNOTATION",
        "AGL_EXCEPTION",
        "AGL_MESSAGE",
        "AGL_OBJECT",
        "AGL_OPERATION",
        "AGL_REWARD",
        "AGL_VIRTUAL",
        "LightningResourceAttributes",
        "LightningSpanAttributes",
    ),
    "types": (
        "Attempt",
        "AttemptStatus",
        "AttemptedRollout",
        "Dataset",
        "EnqueueRolloutRequest",
        "Event",
        "FinishedRollouts",
        "Hook",
        "LLM",
        "Link",
        "NamedResources",
        "OtelResource",
        "PaginatedResult",
        "ParallelWorkerBase",
        "PromptTemplate",
        "ProxyLLM",
        "Resource",
        "ResourcesUpdate",
        "Rollout",
        "RolloutConfig",
        "RolloutMode",
        "RolloutRawResult",
        "RolloutStatus",
        "Span",
        "SpanContext",
        "SpanCoreFields",
        "StoredSpans",
        "TaskInput",
        "TraceStatus",
        "Triplet",
        "UNSET",
        "Worker",
        "WorkerHeartbeat",
        "WorkerStatus",
    ),
    "components": (
        "ComponentSpec",
        "build_component",
        "instantiate_component",
        "instantiate_from_spec",
        "load_class",
        "register",
    ),
    "store": (
        "InMemoryLightningStore",
        "LightningStore",
        "LightningStoreCapabilities",
        "LightningStoreClient",
        "LightningStoreServer",
        "LightningStoreStatistics",
        "LightningStoreThreaded",
        "SQLiteStore",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = ["__version__", *_ROOM_OF]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'sharpen' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f".{_ROOM_OF[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
