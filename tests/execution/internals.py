"""What the tests use of `sharpen.execution` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.execution import apart, runner_process, serving
    from sharpen.execution.checked_store import CheckedStore
    from sharpen.execution.events import Reach
    from sharpen.execution.lives import End
    from sharpen.execution.lost_attempts import lose_those_of_the_dead
    from sharpen.execution.mounts import Mount, announce
    from sharpen.execution.pool import ORPHAN_RULES, pool
    from sharpen.execution.ray import luggage as ray_luggage, waiting as ray_waiting
    from sharpen.execution.ray.algorithm_actor import AlgorithmActor
    from sharpen.execution.ray.arrival import Surroundings
    from sharpen.execution.ray.resources import checked, fits, options_for
    from sharpen.execution.ray.runner_actor import Assignment, RunnerActor
    from sharpen.execution.ray.waiting import Patience, first_answer
    from sharpen.execution.restarts import Restarts
    from sharpen.execution.scaling import Bounds, Scaler
    from sharpen.execution.serving import Served, ServedByProcess, serve
    from sharpen.execution.transport import pack, pack_with_modules

__getattr__ = imports_on_use(__file__)
