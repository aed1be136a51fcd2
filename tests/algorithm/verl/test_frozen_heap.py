"""The garbage collector and what was there before the steps."""

import gc
import weakref
from typing import Any

from tests.algorithm.internals import frozen_heap


class Node:
    """Alive through itself alone."""

    def __init__(self) -> None:
        self.own = self


def lost(node: Any) -> "weakref.ref[Any]":
    return weakref.ref(node)


def test_what_was_there_before_is_collected_afterwards_and_what_came_later_at_once() -> None:
    old: Any = Node()
    kept = lost(old)
    with frozen_heap():
        del old
        fresh = lost(Node())
        gc.collect()
        assert fresh() is None
        assert kept() is not None
    gc.collect()
    assert kept() is None


def test_an_error_inside_ends_it_too() -> None:
    old: Any = Node()
    kept = lost(old)
    try:
        with frozen_heap():
            del old
            raise RuntimeError
    except RuntimeError:
        gc.collect()
    assert kept() is None
