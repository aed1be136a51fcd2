"""What the tests use of `sharpen.adapter` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.adapter.base import for_models
    from sharpen.adapter.tree import build_tree, repair_hierarchy, roots

__getattr__ = imports_on_use(__file__)
