"""Sharpen makes agents better: their prompts, their weights, their policies.

Public names are loaded when they are first used, so that `import sharpen` costs nothing.
"""

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .adapter import (
        Adapter as Adapter,
        LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
        OtelTraceAdapter as OtelTraceAdapter,
        TraceAdapter as TraceAdapter,
        TracerTraceToTriplet as TracerTraceToTriplet,
        TraceToMessages as TraceToMessages,
        TraceToTriplet as TraceToTriplet,
    )
    from .algorithm import (
        APO as APO,
        GEPA as GEPA,
        GRPO as GRPO,
        VERL as VERL,
        Algorithm as Algorithm,
        AlgorithmSequence as AlgorithmSequence,
        Baseline as Baseline,
        FastAlgorithm as FastAlgorithm,
        FewShot as FewShot,
        FunctionalAlgorithm as FunctionalAlgorithm,
        algo as algo,
        batch_iter_over_dataset as batch_iter_over_dataset,
        with_llm_proxy as with_llm_proxy,
        with_store as with_store,
    )
    from .components import (
        ComponentSpec as ComponentSpec,
        build_component as build_component,
        instantiate_component as instantiate_component,
        instantiate_from_spec as instantiate_from_spec,
        load_class as load_class,
        register as register,
    )
    from .emitter import (
        emit_annotation as emit_annotation,
        emit_exception as emit_exception,
        emit_message as emit_message,
        emit_object as emit_object,
        emit_reward as emit_reward,
        find_final_reward as find_final_reward,
        find_reward_spans as find_reward_spans,
        get_message_value as get_message_value,
        get_object_value as get_object_value,
        get_reward_value as get_reward_value,
        get_rewards_from_span as get_rewards_from_span,
        is_reward_span as is_reward_span,
        operation as operation,
        reward as reward,
    )
    from .errors import (
        SharpenError as SharpenError,
    )
    from .execution import (
        ClientServerExecutionStrategy as ClientServerExecutionStrategy,
        ExecutionEvent as ExecutionEvent,
        ExecutionStrategy as ExecutionStrategy,
        MultiprocessingEvent as MultiprocessingEvent,
        RayExecutionStrategy as RayExecutionStrategy,
        SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy,
        ThreadingEvent as ThreadingEvent,
    )
    from .litagent import (
        CommandAgent as CommandAgent,
        CommandResult as CommandResult,
        FunctionalLitAgent as FunctionalLitAgent,
        LitAgent as LitAgent,
        llm_rollout as llm_rollout,
        prompt_rollout as prompt_rollout,
        rollout as rollout,
    )
    from .llm_proxy import (
        Limits as Limits,
        LLMProxy as LLMProxy,
        LLMProxyClient as LLMProxyClient,
        ModelEntry as ModelEntry,
        ModelTotals as ModelTotals,
        Price as Price,
        Totals as Totals,
        record_of_rollout as record_of_rollout,
    )
    from .logging import (
        configure_logger as configure_logger,
        setup_logging as setup_logging,
    )
    from .runner import (
        LitAgentRunner as LitAgentRunner,
        Runner as Runner,
    )
    from .runs import (
        RunFolder as RunFolder,
    )
    from .semconv import (
        AGL_ANNOTATION as AGL_ANNOTATION,
        AGL_EXCEPTION as AGL_EXCEPTION,
        AGL_MESSAGE as AGL_MESSAGE,
        AGL_OBJECT as AGL_OBJECT,
        AGL_OPERATION as AGL_OPERATION,
        AGL_REWARD as AGL_REWARD,
        AGL_VIRTUAL as AGL_VIRTUAL,
        SHARPEN_LLM_CALL as SHARPEN_LLM_CALL,
        LightningLLMAttributes as LightningLLMAttributes,
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
        PostgresStore as PostgresStore,
        RedisLightningStore as RedisLightningStore,
        SQLiteStore as SQLiteStore,
    )
    from .tracer import (
        AgentOpsTracer as AgentOpsTracer,
        DummyTracer as DummyTracer,
        OtelTracer as OtelTracer,
        Tracer as Tracer,
    )
    from .trainer import (
        OpenRollout as OpenRollout,
        RunResult as RunResult,
        RunStatus as RunStatus,
        Trainer as Trainer,
        TrainerLegacy as TrainerLegacy,
        WorkerView as WorkerView,
    )
    from .types import (
        LLM as LLM,
        UNSET as UNSET,
        Attempt as Attempt,
        AttemptedRollout as AttemptedRollout,
        AttemptStatus as AttemptStatus,
        Attributes as Attributes,
        AttributeValue as AttributeValue,
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
        ResourceUnion as ResourceUnion,
        Rollout as Rollout,
        RolloutConfig as RolloutConfig,
        RolloutMode as RolloutMode,
        RolloutPage as RolloutPage,
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
        "LightningLLMAttributes",
        "LightningResourceAttributes",
        "LightningSpanAttributes",
        "SHARPEN_LLM_CALL",
    ),
    "logging": ("configure_logger", "setup_logging"),
    "types": (
        "Attempt",
        "AttemptStatus",
        "AttemptedRollout",
        "AttributeValue",
        "Attributes",
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
        "ResourceUnion",
        "ResourcesUpdate",
        "Rollout",
        "RolloutConfig",
        "RolloutMode",
        "RolloutPage",
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
        "PostgresStore",
        "RedisLightningStore",
        "SQLiteStore",
    ),
    "runs": ("RunFolder",),
    "tracer": (
        "AgentOpsTracer",
        "DummyTracer",
        "OtelTracer",
        "Tracer",
    ),
    "emitter": (
        "emit_annotation",
        "emit_exception",
        "emit_message",
        "emit_object",
        "emit_reward",
        "find_final_reward",
        "find_reward_spans",
        "get_message_value",
        "get_object_value",
        "get_reward_value",
        "get_rewards_from_span",
        "is_reward_span",
        "operation",
        "reward",
    ),
    "litagent": (
        "CommandAgent",
        "CommandResult",
        "FunctionalLitAgent",
        "LitAgent",
        "llm_rollout",
        "prompt_rollout",
        "rollout",
    ),
    "adapter": (
        "Adapter",
        "LlmProxyTraceToTriplet",
        "OtelTraceAdapter",
        "TraceAdapter",
        "TraceToMessages",
        "TraceToTriplet",
        "TracerTraceToTriplet",
    ),
    "llm_proxy": (
        "LLMProxy",
        "LLMProxyClient",
        "Limits",
        "ModelEntry",
        "ModelTotals",
        "Price",
        "Totals",
        "record_of_rollout",
    ),
    "runner": (
        "LitAgentRunner",
        "Runner",
    ),
    "execution": (
        "ClientServerExecutionStrategy",
        "ExecutionEvent",
        "ExecutionStrategy",
        "MultiprocessingEvent",
        "RayExecutionStrategy",
        "SharedMemoryExecutionStrategy",
        "ThreadingEvent",
    ),
    "algorithm": (
        "APO",
        "Algorithm",
        "AlgorithmSequence",
        "Baseline",
        "FastAlgorithm",
        "FewShot",
        "FunctionalAlgorithm",
        "GEPA",
        "GRPO",
        "VERL",
        "algo",
        "batch_iter_over_dataset",
        "with_llm_proxy",
        "with_store",
    ),
    "trainer": (
        "OpenRollout",
        "RunResult",
        "RunStatus",
        "Trainer",
        "TrainerLegacy",
        "WorkerView",
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
