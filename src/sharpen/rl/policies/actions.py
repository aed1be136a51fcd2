"""Drawing actions. Every draw comes from a NumPy generator, one number (or row) for each observation."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ..trees import Array


def new_rng(seed: int | None) -> np.random.Generator:
    """Return a generator with this seed, or one drawn from torch, so that `torch.manual_seed` fixes a whole run."""
    return np.random.default_rng(int(torch.randint(2**62, ()).item()) if seed is None else seed)


def rng_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator as a plain tree."""
    return dict(rng.bit_generator.state)


def load_rng_state(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned."""
    rng.bit_generator.state = state


def sample_categorical(logits_N_A: Array, uniform_N: Array) -> Array:
    """Return the action into whose share of the probability each uniform number falls."""
    weight_N_A = np.exp(logits_N_A - logits_N_A.max(-1, keepdims=True))
    below_N_A = np.cumsum(weight_N_A, axis=-1)
    chosen_N: Array = (below_N_A[:, :-1] <= uniform_N[:, None] * below_N_A[:, -1:]).sum(-1)
    return chosen_N


class ActionBox:
    """Translates between a box of actions and the numbers around 0 that a network outputs.

    A bounded box is mapped from (-1, 1). If only one side is bounded, 0 means one unit inside the bound.
    """

    def __init__(self, space: spaces.Box) -> None:
        self.space = space
        low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
        below, above = np.isfinite(low), np.isfinite(high)
        self.is_bounded = bool(below.all() and above.all())
        safe_low, safe_high = np.where(below, low, 0.0), np.where(above, high, 0.0)
        inside = np.where(below, safe_low + 1.0, np.where(above, safe_high - 1.0, 0.0))
        both = below & above
        self.centre = np.where(both, (safe_low + safe_high) / 2.0, inside).astype(np.float32)
        self.scale = np.where(both, (safe_high - safe_low) / 2.0, 1.0).astype(np.float32)
        self.size = max(1, int(np.prod(space.shape)))

    def to_action(self, raw_N_D: Array) -> Array:
        """Return actions inside the box for the outputs of a network."""
        raw = raw_N_D.reshape(len(raw_N_D), *self.space.shape)
        inside: Array = np.clip(self.centre + self.scale * raw, self.space.low, self.space.high)
        return inside.astype(self.space.dtype)

    def from_action(self, action_N: Array) -> Array:
        """Return the network outputs that stand for these actions."""
        raw = (np.asarray(action_N, np.float32) - self.centre) / self.scale
        return raw.reshape(len(raw), self.size).astype(np.float32)
