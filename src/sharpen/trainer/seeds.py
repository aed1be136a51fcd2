"""One seed for every source of randomness that is in use."""

import random
import sys


def seed_everything(seed: int) -> None:
    """Seed Python's own generator, and those of numpy and torch where they are loaded already."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
