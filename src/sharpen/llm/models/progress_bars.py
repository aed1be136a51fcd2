"""The progress bars of transformers, which would run across those of a training loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """No progress bar inside the block, for work that is short."""
    logging: Any = import_module("transformers.utils.logging")
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
