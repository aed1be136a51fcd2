"""FewShot: prompts that show what went well, chosen by search; no second model."""

from .demonstrations import Demonstration
from .few_shot import FewShot

__all__ = ["Demonstration", "FewShot"]
