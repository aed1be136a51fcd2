"""What the tests use of `sharpen.execution` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.execution import runners, serving, transport
    from sharpen.execution.events import Reach, run_to_end
    from sharpen.execution.ray.actors import ActorContext, AlgorithmActor
    from sharpen.execution.ray.cluster import checked, fits, options_for
    from sharpen.execution.serving import LentStore, Mount, Served, ServedByProcess, announce, serve
    from sharpen.execution.supervisor import Bounds, Restarts, RunnerExit, Scaler, lose_those_of_the_dead
    from sharpen.execution.transport import pack, pack_with_modules
    from sharpen.execution.warm_pool import ORPHAN_RULES, pool
    from sharpen.process.child import Failure

__getattr__ = imports_on_use(__file__)
