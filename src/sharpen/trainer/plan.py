"""`RunPlan`: what a run consists of, in a form that travels to the process of the algorithm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..algorithm import Algorithm
from ..algorithm.base import Gateway
from ..types import Dataset, NamedResources, PromptTemplate, RolloutConfig

if TYPE_CHECKING:
    from ..adapter import TraceAdapter


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The parts of a run and its settings. Callbacks and loggers are specs, built where the algorithm runs."""

    algorithm: Algorithm[Any] | None = None
    train_dataset: Dataset[Any] | None = None
    val_dataset: Dataset[Any] | None = None
    adapter: "TraceAdapter[Any] | None" = None
    llm_proxy: Gateway | None = None
    initial_resources: NamedResources | None = None
    callbacks: Sequence[Any] = ()
    loggers: Sequence[Any] = ()
    rollout_config: RolloutConfig = field(default_factory=RolloutConfig)
    holds_runners: bool = False
    """Whether runners, which would find work at once, wait until the gateway answers."""
    retries: int = 0
    needs_llm: bool = False
    """Whether the agent asks for an LLM that no algorithm publishes."""
    agent_prompt: PromptTemplate | None = None
    agent_takes_prompt: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    """What loggers are told of the settings."""
    run_dir: Path | None = None
    metrics_path: Path | None = None
    checkpoint_path: Path | None = None
    is_resumed: bool = False
    earlier_seconds: float = 0.0
    """How long the run worked before it was resumed."""
    shows_table: bool = True
    stall_seconds: float = 60.0
