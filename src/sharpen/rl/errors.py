"""The errors of this wing.

SharpenError
├── GymSpaceValidationError (ValueError)   an observation or an action outside its space
├── RewardError (ValueError)               a reward that is no number
├── EpisodeError (RuntimeError)            an episode that failed: where, with which initial state, and why
│   └── WorkerDiedError                    its worker process ended
├── SeedIteratorNotAvailable (LookupError) a vessel has no initial states for a stage
└── QueueError (RuntimeError)              a data queue that is not open, or whose producer is gone
"""

from typing import Any

import gymnasium as gym

from ..errors import SharpenError


class GymSpaceValidationError(SharpenError, ValueError):
    """A value is not in its space."""

    def __init__(self, message: str, space: gym.Space[Any], x: Any) -> None:
        super().__init__(message, space, x)
        self.message, self.space, self.x = message, space, x

    def __str__(self) -> str:
        return f"{self.message}\n  Space: {self.space}\n  Sample: {self.x!r}"


class RewardError(SharpenError, ValueError):
    """A reward is no number."""


class EpisodeError(SharpenError, RuntimeError):
    """An episode failed; the message holds the initial state and the traceback of where it ran."""


class WorkerDiedError(EpisodeError):
    """The process that played an episode has ended."""


class SeedIteratorNotAvailable(SharpenError, LookupError):
    """A vessel has no initial states for this stage."""


class QueueError(SharpenError, RuntimeError):
    """A data queue cannot give its next item."""
