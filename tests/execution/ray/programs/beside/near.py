"""Imported by the program."""

from further import ADDED


def double(number: float) -> float:
    return 2 * number + ADDED
