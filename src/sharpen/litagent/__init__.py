"""Agents: a class with a `rollout` method, a function whose parameters are filled by name, or any program."""

from typing import TYPE_CHECKING, Any

from .litagent import FunctionalLitAgent, LitAgent, as_agent, llm_rollout, prompt_rollout, rollout

if TYPE_CHECKING:
    from .command import CommandAgent as CommandAgent, CommandResult as CommandResult

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


def __getattr__(name: str) -> Any:
    """Running programs needs an HTTP server and more, which other agents do not load."""
    if name not in ("CommandAgent", "CommandResult"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import command

    return getattr(command, name)
