"""Nested observations: an array, or a dict or tuple of them, to any depth.

A *batch* is such a tree whose arrays have one row per episode or step. Leaves are visited in the order of the space.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Tree: TypeAlias = Any  # Array | dict[str, Tree] | tuple[Tree, ...]; mypy cannot use a recursive alias of this kind


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The same tree with `function` of its leaves (and of the leaves of `others` at the same place)."""
    if isinstance(tree, dict):
        return {name: map_tree(function, leaf, *(other[name] for other in others)) for name, leaf in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *leaves) for leaves in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Tree) -> list[Any]:
    """The leaves from first to last."""
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def rows(batch: Tree, index: Any) -> Tree:
    """Some rows of a batch, as numpy indexing gives them."""
    return batch[index] if isinstance(batch, np.ndarray) else map_tree(lambda array: array[index], batch)


def copied(batch: Tree) -> Tree:
    return batch.copy() if isinstance(batch, np.ndarray) else map_tree(np.copy, batch)


def row_count(batch: Tree) -> int:
    return len(leaves(batch)[0])


def stack(trees: Sequence[Tree]) -> Tree:
    """One batch of single observations."""
    return map_tree(lambda *parts: np.stack(parts), *trees)


def concatenate(batches: Sequence[Tree]) -> Tree:
    """One batch of several."""
    return map_tree(lambda *parts: np.concatenate(parts), *batches)
