"""The random generators that programs share: Python's, NumPy's global one, torch's.

Those of packages that nobody has imported are left alone. A generator of one's own is part of its owner's state.
"""

import random
import sys
from collections.abc import Mapping
from typing import Any

from .base import State


def rng_state() -> State:
    """The state of all of them, as a tree for `save_state`."""
    state: State = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["torch_cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: Mapping[str, Any]) -> None:
    """Go on with the numbers that would have come after `rng_state`."""
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])
        if "torch_cuda" in state and torch.cuda.is_available():
            # A machine with fewer devices takes those that it has.
            for device, each in enumerate(state["torch_cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(each, device)
