"""`LitAgentRunner`: the runner of agents, under the name that people know."""

from ..types import TaskT
from .base import Runner


class LitAgentRunner(Runner[TaskT]):
    """Runs a `LitAgent`. All of it is in `Runner`, which is enough to be subclassed on its own."""
