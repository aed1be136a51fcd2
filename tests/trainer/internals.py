"""What the tests use of `sharpen.trainer` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.trainer import gateway, progress
    from sharpen.trainer.algorithm_bundle import AlgorithmBundle, AlgorithmStore, RunPlan
    from sharpen.trainer.config import options_of
    from sharpen.trainer.gateway import move_endpoint
    from sharpen.trainer.loop import TrainingLoop
    from sharpen.trainer.progress import Progress

__getattr__ = imports_on_use(__file__)
