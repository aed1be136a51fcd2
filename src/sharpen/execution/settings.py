"""Settings of a strategy that may come from the environment: an argument wins over a variable, which wins over the
default."""

import os
from collections.abc import Callable, Collection
from typing import TypeVar

from ..errors import ConfigError

T = TypeVar("T")


def setting(name: str, given: T | None, variable: str, parse: Callable[[str], T], default: T) -> T:
    """The value of one setting; what cannot be read names its source."""
    if given is not None:
        return given
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"the environment variable {variable} (for {name}) is {text!r}: {error}") from None


def one_of(name: str, value: T, choices: Collection[T]) -> T:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: use one of {', '.join(map(str, choices))}")
    return value


def choice(*choices: str) -> Callable[[str], str]:
    """Reads one of these words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"use one of {', '.join(choices)}")
        return text

    return parse


def yes_or_no(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("use 1 or 0")
    return words[text.lower()]


def port_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ValueError("use 1 to 65535")
    return int(text)


def check_port(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535):
        raise ConfigError(f"{name} is {value!r}: use 1 to 65535, or None for a free port")
    return value
