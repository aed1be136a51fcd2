"""What is in memory before the first step is not looked through again by the garbage collector.

A model and its libraries are about a million objects, which a full collection visits one by one. It holds up every
thread for half a second, and the rollouts of a few steps leave enough behind to ask for one.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def still_heap() -> Iterator[None]:
    """Inside, the collector looks only at what came later. Afterwards everything can be collected as before."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
