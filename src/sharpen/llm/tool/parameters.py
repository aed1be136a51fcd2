"""A parameter of the tool: what it is called, what it may be, and what it does.

The JSON schema, the list for people and the checks are all made from these few fields, so that they cannot differ.
`null` stands for "left out" everywhere: some clients send every key of a schema.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from ...secrets import shown
from ..training.options import ALGORITHMS, OTHER_NAMES
from ..training.settings import DEFAULTS

_NOT_EMPTY = r"\S"

Kind = Literal["string", "integer", "number", "boolean", "array"]

_ARTICLES: dict[Kind, str] = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list of strings",
}


@dataclass(frozen=True)
class Parameter:
    """One key of a call. Bounds hold for numbers; `above` and `below` are outside what is allowed."""

    name: str
    kinds: tuple[Kind, ...]
    description: str
    default: Any = None
    is_required: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    algorithms: tuple[str, ...] = ()
    """The algorithms in which it acts; none named: in all."""
    needs: str | None = None
    """The key without which it does nothing,"""
    freely_in: tuple[str, ...] = ()
    """but in these algorithms."""

    @property
    def words(self) -> str:
        """The description, with the algorithms that the parameter is for."""
        only = f" Only for {' and '.join(self.algorithms)}." if self.algorithms else ""
        free = f", except in {' and '.join(self.freely_in)}" if self.freely_in else ""
        return self.description + only + (f" Needs {self.needs}{free}." if self.needs else "")

    @property
    def expected(self) -> str:
        """What a value may be, in words."""
        if self.choices and "array" not in self.kinds:
            return f"one of {', '.join(self.choices)}"
        kinds = [kind for kind in self.kinds if not (kind == "string" and self.choices)]
        named = f"one of {', '.join(self.choices)}, or " if self.choices else ""
        return named + " or ".join(_ARTICLES[kind] for kind in kinds) + self._bounds()

    def _bounds(self) -> str:
        said = [
            text
            for bound, text in (
                (self.minimum, f"of at least {self.minimum}"),
                (self.above, f"above {self.above}"),
                (self.maximum, f"at most {self.maximum}"),
                (self.below, f"below {self.below}"),
            )
            if bound is not None
        ]
        return f" {' and '.join(said)}" if said else ""

    # -- schema --------------------------------------------------------------------------------------

    def schema(self) -> dict[str, Any]:
        """The parameter in JSON schema."""
        kinds: list[str] = [*self.kinds] if self.is_required else [*self.kinds, "null"]
        schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds, "description": self.words}
        named = [*self.choices] if self.is_required else [*self.choices, None]
        if self.choices:
            schema |= {"anyOf": [{"enum": named}, {"type": "array"}]} if "array" in self.kinds else {"enum": named}
        elif "string" in self.kinds:
            schema["pattern"] = _NOT_EMPTY
        if "array" in self.kinds:
            schema |= {"items": {"type": "string", "pattern": _NOT_EMPTY}, "minItems": 1}
        bounds = {"minimum": self.minimum, "exclusiveMinimum": self.above}
        bounds |= {"maximum": self.maximum, "exclusiveMaximum": self.below}
        schema |= {name: bound for name, bound in bounds.items() if bound is not None}
        if self.default is not None:
            schema["default"] = self.default
        return schema

    # -- checks --------------------------------------------------------------------------------------

    def check(self, value: Any) -> Any:
        """The value as it is used; a ValueError says what is wrong with it."""
        for kind in self.kinds:
            found = _READERS[kind](value)
            if found is not None:
                return self._checked(found)
        raise ValueError(f"{self.name} is {shown(value)}: use {self.expected}")

    def _checked(self, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_name = isinstance(value, str) and bool(self.choices)
        if (is_number and not self._is_within(value)) or (is_name and value not in self.choices):
            raise ValueError(f"{self.name} is {shown(value)}: use {self.expected}")
        return value

    def _is_within(self, value: float) -> bool:
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
        )


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or not value.strip() or "\x00" in value:
        return None
    # JSON may hold half of a character, which no file name and no log can.
    return value if value.encode("utf-8", "replace").decode() == value else None


def _integer(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():  # 3.0 is an integer in JSON schema
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | int | None:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _integer(value)


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _texts(value: Any) -> list[str] | None:
    if not isinstance(value, list) or not value or any(_text(each) is None for each in value):
        return None
    return value


_READERS: dict[Kind, Any] = {
    "string": _text,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "array": _texts,
}


# -- defaults in words --------------------------------------------------------------------------------


def defaults_in_words(name: str) -> str:
    """The default of a setting in each algorithm."""
    setting = OTHER_NAMES.get(name, name)
    found = {each: DEFAULTS[each][setting] for each in ALGORITHMS if setting in DEFAULTS[each]}
    if len(found) == len(ALGORITHMS) and len(set(found.values())) == 1:
        return f"Default: {found[ALGORITHMS[0]]}."
    said = ", ".join(f"{each} {value}" for each, value in found.items())
    return f"Default: {said}." if said else ""
