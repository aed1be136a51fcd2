"""What runs a model needs torch. This is imported before anything that imports it, so that where it is missing the
error names the extra."""

from ...errors import MissingExtraError

try:
    import torch
except ModuleNotFoundError as error:
    raise MissingExtraError.of("torch", extra="llm", feature="running a language model") from error

__all__ = ["torch"]
