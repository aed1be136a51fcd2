"""Names for the members of a list: what a state tree calls them."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def named(things: Iterable[T]) -> dict[str, T]:
    """Each thing under its class name in lower case; a repeated class is numbered: `checkpoint`, `checkpoint1`."""
    names: dict[str, T] = {}
    for thing in things:
        base = name = type(thing).__name__.lower()
        number = 0
        while name in names:
            number += 1
            name = f"{base}{number}"
        names[name] = thing
    return names
