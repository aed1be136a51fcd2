"""Any program as an agent."""

from .agent import CommandAgent
from .result import CommandResult

__all__ = ["CommandAgent", "CommandResult"]
