"""What the tests use of `sharpen.trainer` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.trainer import gateway, gateway_watch, progress
    from sharpen.trainer.algorithm_store import AlgorithmStore
    from sharpen.trainer.bundles import AlgorithmBundle
    from sharpen.trainer.component_options import options_of
    from sharpen.trainer.loop import LoopPlan, TrainingLoop
    from sharpen.trainer.moving import move_endpoint
    from sharpen.trainer.progress import Progress, ProgressPlan

__getattr__ = imports_on_use(__file__)
