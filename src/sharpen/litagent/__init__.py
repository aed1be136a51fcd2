"""Agents: a class with a `rollout` method, a function whose parameters are filled by name, or any program."""

from .base import LitAgent
from .command import CommandAgent, CommandResult
from .decorator import FunctionalLitAgent, as_agent, llm_rollout, prompt_rollout, rollout

__all__ = [
    "CommandAgent",
    "CommandResult",
    "FunctionalLitAgent",
    "LitAgent",
    "as_agent",
    "llm_rollout",
    "prompt_rollout",
    "rollout",
]
