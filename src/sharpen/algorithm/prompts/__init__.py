"""What the optimisers of prompts share."""

from .optimiser import PromptOptimiser
from .shared_options import SharedOptions

__all__ = ["PromptOptimiser", "SharedOptions"]
