"""An OpenAI-compatible API on the engine: chat, completions, streams, tools, token ids and log-probabilities.

Names are loaded when they are first used: what is wrong with a command line is said before torch is loaded.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import EngineServer as EngineServer

__all__ = ["EngineServer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .server import EngineServer

    return EngineServer
