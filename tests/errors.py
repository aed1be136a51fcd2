"""How a test expects an error: by its class and the values it must name, never by its sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


@contextmanager
def raises(expected: type[E] | tuple[type[E], ...], *values: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this class whose message names each of the values: `raises(ConfigError, "group_size", 1)`."""
    __tracebackhide__ = True
    with pytest.raises(expected) as caught:
        yield caught
    for value in values:
        caught.match(whole(value))


def whole(value: object) -> str:
    """The pattern of a value that stands by itself: `size` is not named by `max_size`, nor 1 by `10` or `1.5`."""
    text = re.escape(str(value))
    if isinstance(value, int | float):
        return rf"(?<![\d.]){text}(\.0)?(?!\.?\d)"
    return (r"(?<!\w)" if re.match(r"\w", text) else "") + text + (r"(?!\w)" if re.search(r"\w$", text) else "")
