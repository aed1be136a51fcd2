"""What the tests use of `sharpen.callbacks` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.callbacks import state_file
    from sharpen.callbacks.tree import copy_tree

__getattr__ = imports_on_use(__file__)
