"""The garbage collector of a command that serves."""

import gc


def tune_collector() -> None:
    """Requests make many short-lived objects and leave no circles: looking through all objects after every 700 of them
    doubles the decoding. What is loaded by now stays to the end, and is never looked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
