"""Names that `sharpen` offers without listing them: everything 0.1 had there beside what `sharpen.__all__` lists today.

They are as stable as the listed ones. The documentation imports each from its own module, for example
`from sharpen.types import Worker`.
"""

# ruff: noqa: PLC0414 (`X as X` is what type checkers take for an export)
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..adapter import (
        Adapter as Adapter,
        OtelTraceAdapter as OtelTraceAdapter,
        TraceToTriplet as TraceToTriplet,
    )
    from ..algorithm import (
        AlgorithmSequence as AlgorithmSequence,
        FastAlgorithm as FastAlgorithm,
        FunctionalAlgorithm as FunctionalAlgorithm,
        batch_iter_over_dataset as batch_iter_over_dataset,
        with_llm_proxy as with_llm_proxy,
        with_store as with_store,
    )
    from ..components import (
        ComponentSpec as ComponentSpec,
        build_component as build_component,
        instantiate_component as instantiate_component,
        instantiate_from_spec as instantiate_from_spec,
        load_class as load_class,
    )
    from ..emitter import (
        find_reward_spans as find_reward_spans,
        get_message_value as get_message_value,
        get_object_value as get_object_value,
        get_reward_value as get_reward_value,
        get_rewards_from_span as get_rewards_from_span,
        is_reward_span as is_reward_span,
        reward as reward,
    )
    from ..execution import (
        ExecutionEvent as ExecutionEvent,
        MultiprocessingEvent as MultiprocessingEvent,
        ThreadingEvent as ThreadingEvent,
    )
    from ..litagent import (
        CommandResult as CommandResult,
        FunctionalLitAgent as FunctionalLitAgent,
        llm_rollout as llm_rollout,
        prompt_rollout as prompt_rollout,
    )
    from ..llm_proxy import (
        LLMProxyClient as LLMProxyClient,
        ModelEntry as ModelEntry,
        ModelTotals as ModelTotals,
        Totals as Totals,
        record_of_rollout as record_of_rollout,
    )
    from ..logging import (
        configure_logger as configure_logger,
    )
    from ..runner import (
        Runner as Runner,
    )
    from ..runs import (
        RunFolder as RunFolder,
    )
    from ..semconv import (
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
    from ..store import (
        LightningStoreCapabilities as LightningStoreCapabilities,
        LightningStoreStatistics as LightningStoreStatistics,
        LightningStoreThreaded as LightningStoreThreaded,
    )
    from ..tracer import (
        DummyTracer as DummyTracer,
    )
    from ..trainer import (
        OpenRollout as OpenRollout,
        TrainerLegacy as TrainerLegacy,
        WorkerView as WorkerView,
    )
    from ..types import (
        UNSET as UNSET,
        AttemptStatus as AttemptStatus,
        Attributes as Attributes,
        AttributeValue as AttributeValue,
        Event as Event,
        FinishedRollouts as FinishedRollouts,
        Link as Link,
        OtelResource as OtelResource,
        PaginatedResult as PaginatedResult,
        ParallelWorkerBase as ParallelWorkerBase,
        Resource as Resource,
        ResourcesUpdate as ResourcesUpdate,
        ResourceUnion as ResourceUnion,
        RolloutMode as RolloutMode,
        RolloutPage as RolloutPage,
        RolloutRawResult as RolloutRawResult,
        SpanContext as SpanContext,
        SpanCoreFields as SpanCoreFields,
        StoredSpans as StoredSpans,
        TaskInput as TaskInput,
        TraceStatus as TraceStatus,
        Worker as Worker,
        WorkerHeartbeat as WorkerHeartbeat,
        WorkerStatus as WorkerStatus,
    )

NAMES: dict[str, tuple[str, ...]] = {
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
    "logging": ("configure_logger",),
    "types": (
        "AttemptStatus",
        "AttributeValue",
        "Attributes",
        "Event",
        "FinishedRollouts",
        "Link",
        "OtelResource",
        "PaginatedResult",
        "ParallelWorkerBase",
        "Resource",
        "ResourceUnion",
        "ResourcesUpdate",
        "RolloutMode",
        "RolloutPage",
        "RolloutRawResult",
        "SpanContext",
        "SpanCoreFields",
        "StoredSpans",
        "TaskInput",
        "TraceStatus",
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
    ),
    "store": (
        "LightningStoreCapabilities",
        "LightningStoreStatistics",
        "LightningStoreThreaded",
    ),
    "runs": ("RunFolder",),
    "tracer": ("DummyTracer",),
    "emitter": (
        "find_reward_spans",
        "get_message_value",
        "get_object_value",
        "get_reward_value",
        "get_rewards_from_span",
        "is_reward_span",
        "reward",
    ),
    "litagent": (
        "CommandResult",
        "FunctionalLitAgent",
        "llm_rollout",
        "prompt_rollout",
    ),
    "adapter": (
        "Adapter",
        "OtelTraceAdapter",
        "TraceToTriplet",
    ),
    "llm_proxy": (
        "LLMProxyClient",
        "ModelEntry",
        "ModelTotals",
        "Totals",
        "record_of_rollout",
    ),
    "runner": ("Runner",),
    "execution": (
        "ExecutionEvent",
        "MultiprocessingEvent",
        "ThreadingEvent",
    ),
    "algorithm": (
        "AlgorithmSequence",
        "FastAlgorithm",
        "FunctionalAlgorithm",
        "batch_iter_over_dataset",
        "with_llm_proxy",
        "with_store",
    ),
    "trainer": (
        "OpenRollout",
        "TrainerLegacy",
        "WorkerView",
    ),
}
MODULE_OF = {name: module for module, names in NAMES.items() for name in names}
