"""Sharpen makes agents better: their prompts, their weights, their policies.

Public names are loaded when they are first used, so that `import sharpen` costs nothing.
"""

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .components import (
        ComponentSpec as ComponentSpec,
    )
    from .components import (
        build_component as build_component,
    )
    from .components import (
        instantiate_component as instantiate_component,
    )
    from .components import (
        instantiate_from_spec as instantiate_from_spec,
    )
    from .components import (
        load_class as load_class,
    )
    from .components import (
        register as register,
    )
    from .errors import (
        SharpenError as SharpenError,
    )
    from .semconv import (
        AGL_ANNOTATION as AGL_ANNOTATION,
    )
    from .semconv import (
        AGL_EXCEPTION as AGL_EXCEPTION,
    )
    from .semconv import (
        AGL_MESSAGE as AGL_MESSAGE,
    )
    from .semconv import (
        AGL_OBJECT as AGL_OBJECT,
    )
    from .semconv import (
        AGL_OPERATION as AGL_OPERATION,
    )
    from .semconv import (
        AGL_REWARD as AGL_REWARD,
    )
    from .semconv import (
        AGL_VIRTUAL as AGL_VIRTUAL,
    )
    from .semconv import (
        LightningResourceAttributes as LightningResourceAttributes,
    )
    from .semconv import (
        LightningSpanAttributes as LightningSpanAttributes,
    )
    from .store import (
        InMemoryLightningStore as InMemoryLightningStore,
    )
    from .store import (
        LightningStore as LightningStore,
    )
    from .store import (
        LightningStoreCapabilities as LightningStoreCapabilities,
    )
    from .store import (
        LightningStoreClient as LightningStoreClient,
    )
    from .store import (
        LightningStoreServer as LightningStoreServer,
    )
    from .store import (
        LightningStoreStatistics as LightningStoreStatistics,
    )
    from .store import (
        LightningStoreThreaded as LightningStoreThreaded,
    )
    from .store import (
        SQLiteStore as SQLiteStore,
    )
    from .types import (
        LLM as LLM,
    )
    from .types import (
        UNSET as UNSET,
    )
    from .types import (
        Attempt as Attempt,
    )
    from .types import (
        AttemptedRollout as AttemptedRollout,
    )
    from .types import (
        AttemptStatus as AttemptStatus,
    )
    from .types import (
        Dataset as Dataset,
    )
    from .types import (
        EnqueueRolloutRequest as EnqueueRolloutRequest,
    )
    from .types import (
        Event as Event,
    )
    from .types import (
        FinishedRollouts as FinishedRollouts,
    )
    from .types import (
        Hook as Hook,
    )
    from .types import (
        Link as Link,
    )
    from .types import (
        NamedResources as NamedResources,
    )
    from .types import (
        OtelResource as OtelResource,
    )
    from .types import (
        PaginatedResult as PaginatedResult,
    )
    from .types import (
        ParallelWorkerBase as ParallelWorkerBase,
    )
    from .types import (
        PromptTemplate as PromptTemplate,
    )
    from .types import (
        ProxyLLM as ProxyLLM,
    )
    from .types import (
        Resource as Resource,
    )
    from .types import (
        ResourcesUpdate as ResourcesUpdate,
    )
    from .types import (
        Rollout as Rollout,
    )
    from .types import (
        RolloutConfig as RolloutConfig,
    )
    from .types import (
        RolloutMode as RolloutMode,
    )
    from .types import (
        RolloutRawResult as RolloutRawResult,
    )
    from .types import (
        RolloutStatus as RolloutStatus,
    )
    from .types import (
        Span as Span,
    )
    from .types import (
        SpanContext as SpanContext,
    )
    from .types import (
        SpanCoreFields as SpanCoreFields,
    )
    from .types import (
        StoredSpans as StoredSpans,
    )
    from .types import (
        TaskInput as TaskInput,
    )
    from .types import (
        TraceStatus as TraceStatus,
    )
    from .types import (
        Triplet as Triplet,
    )
    from .types import (
        Worker as Worker,
    )
    from .types import (
        WorkerHeartbeat as WorkerHeartbeat,
    )
    from .types import (
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
