"""`EnvWrapper`, under the path that people know."""

from ..env_wrapper import EnvWrapper, EnvWrapperStatus, InfoDict

__all__ = ["EnvWrapper", "EnvWrapperStatus", "InfoDict"]
