"""Sharpen makes agents better: their prompts, their weights, their policies.

Public names are loaded on first use, so `import sharpen` costs nothing. `__all__` lists what most programs need; other
names that 0.1 had here are in `compat/names.py` and can still be imported.
"""

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .adapter import (
        LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
        TraceAdapter as TraceAdapter,
        TracerTraceToTriplet as TracerTraceToTriplet,
        TraceToMessages as TraceToMessages,
    )
    from .algorithm import (
        APO as APO,
        GEPA as GEPA,
        GRPO as GRPO,
        VERL as VERL,
        Algorithm as Algorithm,
        Baseline as Baseline,
        FewShot as FewShot,
        algo as algo,
    )
    from .callbacks import (
        Callback as Callback,
        Checkpoint as Checkpoint,
        EarlyStopping as EarlyStopping,
    )
    from .compat.names import *  # noqa: F403
    from .components import (
        register as register,
    )
    from .emitter import (
        emit_annotation as emit_annotation,
        emit_exception as emit_exception,
        emit_message as emit_message,
        emit_object as emit_object,
        emit_reward as emit_reward,
        find_final_reward as find_final_reward,
        operation as operation,
    )
    from .errors import (
        SharpenError as SharpenError,
    )
    from .execution import (
        ClientServerExecutionStrategy as ClientServerExecutionStrategy,
        ExecutionStrategy as ExecutionStrategy,
        RayExecutionStrategy as RayExecutionStrategy,
        SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy,
    )
    from .litagent import (
        CommandAgent as CommandAgent,
        LitAgent as LitAgent,
        rollout as rollout,
    )
    from .llm_proxy import (
        Limits as Limits,
        LLMProxy as LLMProxy,
        Price as Price,
    )
    from .logging import (
        setup_logging as setup_logging,
    )
    from .runner import (
        LitAgentRunner as LitAgentRunner,
    )
    from .store import (
        InMemoryLightningStore as InMemoryLightningStore,
        LightningStore as LightningStore,
        LightningStoreClient as LightningStoreClient,
        LightningStoreServer as LightningStoreServer,
        PostgresStore as PostgresStore,
        RedisLightningStore as RedisLightningStore,
        SQLiteStore as SQLiteStore,
    )
    from .tracer import (
        AgentOpsTracer as AgentOpsTracer,
        OtelTracer as OtelTracer,
        Tracer as Tracer,
    )
    from .trainer import (
        RunResult as RunResult,
        RunStatus as RunStatus,
        Trainer as Trainer,
    )
    from .types import (
        LLM as LLM,
        Attempt as Attempt,
        AttemptedRollout as AttemptedRollout,
        Dataset as Dataset,
        EnqueueRolloutRequest as EnqueueRolloutRequest,
        Hook as Hook,
        NamedResources as NamedResources,
        PromptTemplate as PromptTemplate,
        ProxyLLM as ProxyLLM,
        Rollout as Rollout,
        RolloutConfig as RolloutConfig,
        RolloutStatus as RolloutStatus,
        Span as Span,
        Triplet as Triplet,
    )

_NAMES: dict[str, tuple[str, ...]] = {
    "errors": ("SharpenError",),
    "logging": ("setup_logging",),
    "types": (
        "Attempt",
        "AttemptedRollout",
        "Dataset",
        "EnqueueRolloutRequest",
        "Hook",
        "LLM",
        "NamedResources",
        "PromptTemplate",
        "ProxyLLM",
        "Rollout",
        "RolloutConfig",
        "RolloutStatus",
        "Span",
        "Triplet",
    ),
    "components": ("register",),
    "callbacks": (
        "Callback",
        "Checkpoint",
        "EarlyStopping",
    ),
    "store": (
        "InMemoryLightningStore",
        "LightningStore",
        "LightningStoreClient",
        "LightningStoreServer",
        "PostgresStore",
        "RedisLightningStore",
        "SQLiteStore",
    ),
    "tracer": (
        "AgentOpsTracer",
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
        "operation",
    ),
    "litagent": (
        "CommandAgent",
        "LitAgent",
        "rollout",
    ),
    "adapter": (
        "LlmProxyTraceToTriplet",
        "TraceAdapter",
        "TraceToMessages",
        "TracerTraceToTriplet",
    ),
    "llm_proxy": (
        "LLMProxy",
        "Limits",
        "Price",
    ),
    "runner": ("LitAgentRunner",),
    "execution": (
        "ClientServerExecutionStrategy",
        "ExecutionStrategy",
        "RayExecutionStrategy",
        "SharedMemoryExecutionStrategy",
    ),
    "algorithm": (
        "APO",
        "Algorithm",
        "Baseline",
        "FewShot",
        "GEPA",
        "GRPO",
        "VERL",
        "algo",
    ),
    "trainer": (
        "RunResult",
        "RunStatus",
        "Trainer",
    ),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    from importlib import import_module

    module = _MODULE_OF.get(name) or import_module(".compat.names", __name__).MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'sharpen' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
