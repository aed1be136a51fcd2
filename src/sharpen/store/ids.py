"""New ids: a kind, the time and random hex, so that ids made one after another lie side by side in an index."""

import os
import time


def new_id(kind: str) -> str:
    """For example `ro-019a…`: 12 hex digits of milliseconds and 16 of randomness.

    The 64 random bits of an attempt's id admit its agent to the gateway of a run. They are guessed online only, against
    attempts that are open for minutes: a million guesses a second for an hour find one of 1,000 with 2e-7.
    """
    return f"{kind}-{time.time_ns() // 1_000_000:012x}{os.urandom(8).hex()}"
