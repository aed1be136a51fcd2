"""The trainer: builds the parts of a run and hands them to a strategy."""

from ..compat.trainer import TrainerLegacy
from .status import OpenRollout, RunResult, RunStatus, WorkerView
from .trainer import Trainer

__all__ = ["OpenRollout", "RunResult", "RunStatus", "Trainer", "TrainerLegacy", "WorkerView"]
