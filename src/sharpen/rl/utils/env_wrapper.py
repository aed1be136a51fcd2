"""`EnvWrapper`, under the path that Qlib has for it."""

from ..env_wrapper import EnvWrapper, EnvWrapperStatus, InfoDict

__all__ = ["EnvWrapper", "EnvWrapperStatus", "InfoDict"]
