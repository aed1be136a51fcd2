"""Whole numbers among the arguments of a command."""

import argparse
from collections.abc import Callable


def count_from(least: int) -> Callable[[str], int]:
    """What argparse calls with the text of a number that is at least `least`."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)

    return read
