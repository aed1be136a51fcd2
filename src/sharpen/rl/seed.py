"""Where an episode begins: the initial state that a simulator is built from."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TypeAlias, TypeVar

InitialStateType = TypeVar("InitialStateType")
"""Any value; a simulator knows what it means."""

SeedIterator: TypeAlias = Iterable[InitialStateType] | AbstractContextManager[Iterable[InitialStateType]]
"""Initial states, or a context manager that gives them."""
