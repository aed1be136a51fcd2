"""What the tests use of `sharpen.types` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.types import prompt_template
    from sharpen.types.prompt_template import Field, escape_fields, parse_fields, with_text_fields

__getattr__ = imports_on_use(__file__)
