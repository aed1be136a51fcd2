"""`LitAgentRunner`: the runner of agents, under the name that people know."""

from typing import TypeVar

from .base import Runner

T = TypeVar("T")


class LitAgentRunner(Runner[T]):
    """Runs a `LitAgent`. All of it is in `Runner`, which is enough to be subclassed on its own."""
