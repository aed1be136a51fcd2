"""What the tests use of `sharpen.tracer` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.tracer.instrumentation import ImportWatch
    from sharpen.tracer.trace import is_content, last_trace

__getattr__ = imports_on_use(__file__)
