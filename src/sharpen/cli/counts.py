"""Whole numbers as command-line arguments."""

import argparse
from collections.abc import Callable


def count_from(least: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers of at least `least`."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read
