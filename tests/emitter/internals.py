"""What the tests use of `sharpen.emitter` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.emitter.operation import as_json
    from sharpen.tracer import base as tracer_base

__getattr__ = imports_on_use(__file__)
