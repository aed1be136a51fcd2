"""The error of sampling.

EngineError (SharpenError, RuntimeError)    the engine could not go on with a request, or is not in a state to take one
"""

from ...errors import SharpenError


class EngineError(SharpenError, RuntimeError):
    """The engine could not go on with a request, or is not in a state to take one."""
