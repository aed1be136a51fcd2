"""APO: prompts that improve themselves, by critique and edit."""

from .apo import APO, RolloutResultForAPO, VersionedPromptTemplate

__all__ = ["APO", "RolloutResultForAPO", "VersionedPromptTemplate"]
