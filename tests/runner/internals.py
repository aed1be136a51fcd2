"""What the tests use of `sharpen.runner` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.runner.attempt import with_keys
    from sharpen.runner.base import RunnerBundle, unpack

__getattr__ = imports_on_use(__file__)
