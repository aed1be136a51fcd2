"""The progress bars of `datasets`, which would run across that of the training loop."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """No progress bar inside the block."""
    import datasets

    were_off = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            datasets.enable_progress_bars()
