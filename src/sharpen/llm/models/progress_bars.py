"""The progress bars of transformers and datasets, which would run across those of a training loop."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """No progress bar inside the block, for work that is short."""
    logging: Any = import_module("transformers.utils.logging")
    datasets = sys.modules.get("datasets")
    was_on = logging.is_progress_bar_enabled()
    were_on = datasets is not None and not datasets.are_progress_bars_disabled()
    logging.disable_progress_bar()
    if datasets is not None:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
        if datasets is not None and were_on:
            datasets.enable_progress_bars()
