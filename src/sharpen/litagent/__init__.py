"""Agents: a class with a `rollout` method, or a function whose parameters are filled by name."""

from .base import LitAgent
from .decorator import FunctionalLitAgent, as_agent, llm_rollout, prompt_rollout, rollout

__all__ = [
    "FunctionalLitAgent",
    "LitAgent",
    "as_agent",
    "llm_rollout",
    "prompt_rollout",
    "rollout",
]
