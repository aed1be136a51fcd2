"""The kinds of values that a key of a config may have, and how each is read.

A config comes from Python, from JSON or from YAML, which reads 1e-6 as text: numbers and truth values are taken as text
too. A `Kind` gives the value in its own type, or raises ValueError; who asks puts the name of the key to it.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import msgspec

from ...errors import ConfigError

_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: in words that follow "use", and the reader that gives it or raises ValueError."""

    words: str
    read: Callable[[Any], Any]


def read_value(name: str, kind: Kind, value: Any) -> Any:
    """The value of a key; a ConfigError names the key and what to use."""
    try:
        return kind.read(value)
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{name} is {shown(value)}: use {kind.words}") from error


def shown(value: Any) -> str:
    """A value as it is written in a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; a list of lists without end
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


# -- numbers -----------------------------------------------------------------------------------------


def whole(least: int, most: int | None = None, *, note: str = "") -> Kind:
    words = f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"

    def read(value: Any) -> int:
        found = _as_whole(value)
        if found < least or (most is not None and found > most):
            raise ValueError(f"{found} is out of range")
        return found

    return Kind(words + (f" ({note})" if note else ""), read)


def number(
    *, above: float | None = None, least: float | None = None, most: float | None = None, below: float | None = None
) -> Kind:
    bounds = {"above {}": above, "{} or more": least, "{} or less": most, "below {}": below}
    words = " and ".join(text.format(f"{bound:g}") for text, bound in bounds.items() if bound is not None)

    def read(value: Any) -> float:
        found = _as_number(value)
        is_low = (above is not None and found <= above) or (least is not None and found < least)
        if is_low or (most is not None and found > most) or (below is not None and found >= below):
            raise ValueError(f"{found} is out of range")
        return found

    return Kind(f"a number, {words}", read)


def _as_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise TypeError("not a number")
    found = float(value)
    if not math.isfinite(found):
        raise ValueError("not finite")
    return found


def _as_whole(value: Any) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass  # it may be written as 1e3, which is a number below
    found = _as_number(value)
    if found != int(found):
        raise ValueError("not whole")
    return int(found)


def _as_betas(value: Any) -> list[float]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError("not a pair")
    found = [_as_number(each) for each in value]
    if len(found) != 2 or not all(0 <= each < 1 for each in found):
        raise ValueError("not two fractions")
    return found


BETAS = Kind("two numbers, 0 or more and below 1, such as [0.9, 0.999]", _as_betas)
SEED = whole(0, 2**32 - 1)
FREQUENCY = Kind("a number of steps, or -1 for the end only", lambda value: whole(-1).read(value) or -1)


# -- words -------------------------------------------------------------------------------------------


def _as_truth(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise TypeError("neither True nor False")
    return value


def _as_text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError("not a str")
    found = os.fspath(value)
    if not isinstance(found, str) or not found.strip() or "\0" in found:
        raise ValueError("empty")
    return found


def _as_path(value: Any) -> str:
    found = _as_text(value)
    return os.path.expanduser(found) if found.startswith("~") else found


def _as_texts(value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError("not a list")
    return [_as_text(each) for each in value]


def choice(*names: str, others: Mapping[str, str] | None = None) -> Kind:
    """One of `names`; `others` are further spellings of them."""
    spellings = {name: name for name in names} | dict(others or {})
    also = f" (or verl's {', '.join(others)})" if others else ""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in spellings:
            raise ValueError("no such name")
        return spellings[value]

    return Kind(f"{', '.join(names)}{also}", read)


def truth_or(name: str) -> Kind:
    """True, False, or a word."""

    def read(value: Any) -> bool | str:
        return name if value == name and isinstance(value, str) else _as_truth(value)

    return Kind(f"True, False or {name}", read)


def one_or_more(words: str, *, keeps_one: bool) -> Kind:
    """A name, or a list of names; `keeps_one` leaves a single name as it is."""

    def read(value: Any) -> str | list[str]:
        if isinstance(value, str):
            return _as_text(value) if keeps_one else [_as_text(value)]
        found = _as_texts(value)
        if keeps_one and not found:
            raise ValueError("empty")
        return found

    return Kind(words, read)


def _as_trainable(value: Any) -> str:
    if value in ("all", "lora"):
        return str(value)
    if not isinstance(value, str) or not value.startswith("top:"):
        raise ValueError("no such part")
    return f"top:{whole(1).read(value.removeprefix('top:'))}"


def _as_json(value: Any) -> dict[str, Any]:
    if not hasattr(value, "keys"):
        raise TypeError("no mapping")
    # Through JSON and back: what cannot travel there is refused, and nobody else holds the copy.
    found = msgspec.json.decode(msgspec.json.encode(dict(value)))
    if not isinstance(found, dict):
        raise TypeError("no mapping")
    return found


TRUTH = Kind("True or False", _as_truth)
TEXT = Kind("a str", _as_text)
PATH = Kind("a path", _as_path)
MODEL = Kind("a name on the Hugging Face hub, a folder, or a .gguf file", _as_path)
MODULES = one_or_more("all-linear, or module names such as ['q_proj', 'v_proj']", keeps_one=True)
TRAINABLE = Kind("all, lora, or top:N for the last N layers", _as_trainable)
MAPPING = Kind("a mapping of JSON values", _as_json)
