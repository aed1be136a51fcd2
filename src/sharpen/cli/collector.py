"""Garbage collection in commands that serve requests."""

import gc


def tune_collector() -> None:
    """Collect less often. Requests create many short-lived objects without reference cycles, and a collection after
    every 700 of them doubles the time for decoding. Objects that exist now are never scanned again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
