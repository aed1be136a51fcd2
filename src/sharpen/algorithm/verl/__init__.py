"""`VERL` and `GRPO`: reinforcement learning of the model behind an agent."""

from .grpo import GRPO
from .verl import VERL

__all__ = ["GRPO", "VERL"]
