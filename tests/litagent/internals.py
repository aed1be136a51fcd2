"""What the tests use of `sharpen.litagent` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.litagent.command_reports import MAX_BODY_BYTES, listening

__getattr__ = imports_on_use(__file__)
