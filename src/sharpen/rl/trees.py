"""Nested observations: an array, or a dict or tuple of them, to any depth.

A *batch* is such a tree whose arrays have one row per episode or step. Leaves are visited in the order of the space.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Tree: TypeAlias = Any  # Array | dict[str, Tree] | tuple[Tree, ...]; mypy cannot use a recursive alias of this kind


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Return the tree with `function` applied to its leaves, and to the leaves of `others` at the same place."""
    if isinstance(tree, dict):
        return {name: map_tree(function, leaf, *(other[name] for other in others)) for name, leaf in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *leaves) for leaves in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves from first to last."""
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def rows(batch: Tree, index: Any) -> Tree:
    """Return some rows of a batch, as NumPy indexing does."""
    return batch[index] if isinstance(batch, np.ndarray) else map_tree(lambda array: array[index], batch)


def copied(batch: Tree) -> Tree:
    return batch.copy() if isinstance(batch, np.ndarray) else map_tree(np.copy, batch)


def row_count(batch: Tree) -> int:
    return len(leaves(batch)[0])


def stack(trees: Sequence[Tree]) -> Tree:
    """Return single observations as one batch."""
    return map_tree(lambda *parts: np.stack(parts), *trees)


def concatenate(batches: Sequence[Tree]) -> Tree:
    """Return several batches as one."""
    return map_tree(lambda *parts: np.concatenate(parts), *batches)
