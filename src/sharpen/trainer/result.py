"""How a run ended."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from ..types import NamedResources

RunEnd = Literal["succeeded", "failed", "interrupted"]


class RunResult(msgspec.Struct, frozen=True):
    """What `fit` returns."""

    status: RunEnd
    metrics: dict[str, Any] = {}
    """By name: `train/…` of the last iteration, `val/…` of the last validation, and of the whole run `run/reward_mean`,
    `run/train/…`, `run/val/…`, `rollouts` and other counts, and `llm/…`. `reward_mean` is an old name of
    `run/reward_mean`; where an algorithm reports no iterations, `train/…` and `val/…` are those of the whole run."""
    best_resources: NamedResources | None = None
    """The resources that were published last, without an LLM that was only served during the run."""
    run_dir: Path | None = None
    """Where the records are."""
    seconds: float = 0.0
    """How long it worked; of a run that was resumed, over all its starts."""
    resources_id: str | None = None
    resources_version: int | None = None
    error: str | None = None
    model_dir: Path | None = None
    """The folder of the model that was trained, where the algorithm trains one."""
    warnings: list[str] = []
    """What a successful run should still be looked at for, such as a metric that ended worse than it began."""

    def record(self) -> dict[str, Any]:
        """The same for a file; the resources themselves are in the store."""
        found = msgspec.structs.asdict(self)
        del found["best_resources"], found["run_dir"]
        return found | {"model_dir": None if self.model_dir is None else str(self.model_dir)}
