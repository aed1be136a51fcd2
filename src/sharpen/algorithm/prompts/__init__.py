"""What the optimisers of prompts share."""

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .optimiser import PromptOptimiser
    from .preflight import SharedOptions

__all__ = ["PromptOptimiser", "SharedOptions"]

__getattr__ = lazy_names(__name__, {".optimiser": ["PromptOptimiser"], ".preflight": ["SharedOptions"]})
