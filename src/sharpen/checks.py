"""Checks of what callers pass in.

Every error names the option, its value and what is allowed; an unknown name comes with the nearest known ones. A check
returns the value it accepted: a plain `int` or `float`, also where NumPy's numbers were given. A bool is not a number.
Errors are `ConfigError` unless the caller passes another class.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from numbers import Integral, Real
from typing import Any, TypeGuard, TypeVar

from .errors import ConfigError, MissingExtraError, SharpenError

T = TypeVar("T")
E = TypeVar("E", bound=SharpenError)
Whole = TypeVar("Whole", int, int | None)
Number = TypeVar("Number", float, float | None)
FEW_NAMES = 12
_SETTING = "_sharpen_setting"


# -- names -------------------------------------------------------------------------------------------


def nearest_names(name: str, known: Iterable[str], *, limit: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the known names most like `name`, best first, whatever their case.

    Args:
        name: What the caller wrote.
        known: The names to compare it with.
        limit: How many to return at most.
        cutoff: How alike they must be, from 0 (anything) to 1 (equal).
    """
    by_folded = {each.casefold(): each for each in known}
    return [by_folded[each] for each in get_close_matches(name.casefold(), by_folded, n=limit, cutoff=cutoff)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the sentence ` Did you mean 'x' or 'y'?`, or an empty text when no known name is near."""
    near = nearest_names(name, known)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def name_hint(name: str, known: Iterable[str], *, label: str = "Known names") -> str:
    """Return what to say after an unknown name: the nearest names, and all of them when they are few or none is near.

    The text begins with a space, and is empty when nothing is known.
    """
    names = list(known)
    hint = did_you_mean(name, names)
    if names and (not hint or len(names) <= FEW_NAMES):
        hint += f" {label}: {listed(names, limit=FEW_NAMES)}."
    return hint


def listed(names: Sequence[str], *, limit: int = 6) -> str:
    """Join names for a sentence; a long list ends with how many were left out."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def check_names(
    given: Iterable[Any],
    known: Iterable[str],
    *,
    owner: str,
    noun: str = "option",
    error: type[SharpenError] = ConfigError,
) -> None:
    """Refuse the first of the given names that is unknown: "GRPO has no option 'lr_rate'. Did you mean 'lr'?"."""
    names = list(known)
    for name in given:
        if name not in names:
            hint = name_hint(str(name), names, label=f"Known {noun}s")
            raise error(f"{owner} has no {noun} {name!r}.{hint}")


def check_choice(
    name: str, value: T, choices: Collection[object], *, optional: bool = False, error: type[SharpenError] = ConfigError
) -> T:
    """Return the value if it is one of the choices, or None where that is allowed."""
    if (value is None and optional) or value in choices:
        return value
    texts = [each for each in choices if isinstance(each, str)]
    hint = did_you_mean(value, texts) if isinstance(value, str) and len(texts) > 3 else ""
    one_of = ", ".join(map(repr, choices)) + (" or None" if optional else "")
    raise about(name, error(f"{name} is {value!r:.200}: use {one_of}.{hint}"))


def check_bool(
    name: str, value: bool | None, *, optional: bool = False, error: type[SharpenError] = ConfigError
) -> None:
    """Refuse what is not True or False, also the 1 and 0 that equal them; None where that is allowed."""
    if not isinstance(value, bool) and not (value is None and optional):
        raise about(name, error(f"{name} is {value!r:.80}: use True or False{' or None' if optional else ''}"))


# -- numbers -----------------------------------------------------------------------------------------


def is_int(value: object) -> TypeGuard[int]:
    """Return True for a plain whole number; a bool is not one."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a plain finite number; a bool is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)


def check_int(
    name: str,
    value: Whole,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    optional: bool = False,
    error: type[SharpenError] = ConfigError,
) -> Whole:
    """Return a whole number within the bounds, or None where that is allowed."""
    if value is None and optional:
        return value
    # Exact types first: asking for the abstract ones takes longer.
    if type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool)):
        number = int(value)
        if (at_least is None or number >= at_least) and (at_most is None or number <= at_most):
            return number
    bounds = _bounds(at_least=at_least, at_most=at_most)
    message = f"{name} is {value!r:.80}: use a whole number{bounds}{' or None' if optional else ''}"
    raise about(name, error(message))


def check_ints(*, at_least: int = 1, error: type[SharpenError] = ConfigError, **values: int | None) -> None:
    """Check several options at once, given by their names; None stands for an option that was not set."""
    for name, value in values.items():
        check_int(name, value, at_least=at_least, optional=True, error=error)


def check_number(
    name: str,
    value: Number,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    optional: bool = False,
    unit: str = "",
    error: type[SharpenError] = ConfigError,
) -> Number:
    """Return a finite number within the bounds, or None where that is allowed.

    A whole number stays one. `unit` is named in the error: "use a number of seconds above 0".
    """
    if value is None and optional:
        return value
    if is_number(value) or (isinstance(value, Real) and not isinstance(value, bool) and _is_finite(value)):
        is_low = (above is not None and value <= above) or (at_least is not None and value < at_least)
        is_high = (below is not None and value >= below) or (at_most is not None and value > at_most)
        if not is_low and not is_high:
            if type(value) is float or type(value) is int:
                return value
            return int(value) if isinstance(value, Integral) else float(value)
    bounds = _bounds(above=above, at_least=at_least, below=below, at_most=at_most)
    what = f"number of {unit}" if unit else "finite number" if not bounds else "number"
    message = f"{name} is {value!r:.80}: use a {what}{bounds}{' or None' if optional else ''}"
    raise about(name, error(message))


def _is_finite(value: Real | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number larger than any float
        return False


def _bounds(**bounds: float | None) -> str:
    """Name the bounds that are set: ` of at least 1 and at most 64`."""
    texts = [f"{name.replace('_', ' ')} {bound}" for name, bound in bounds.items() if bound is not None]
    if not texts:
        return ""
    return (" " if texts[0].startswith(("above", "below")) else " of ") + " and ".join(texts)


# -- the setting that an error is about --------------------------------------------------------------


def about(setting: str, error: E) -> E:
    """Return the error, marked with the setting it is about, so that a configuration file can point at the line.

    A setting within others is dotted: `model_list.0`.
    """
    vars(error).setdefault(_SETTING, setting)
    return error


def setting_of(error: SharpenError) -> str | None:
    """Return the setting that an error was marked with, if any."""
    found: str | None = vars(error).get(_SETTING)
    return found


# -- optional packages -------------------------------------------------------------------------------


@contextmanager
def needs_extra(package: str, *, extra: str | None, feature: str) -> Iterator[None]:
    """Turn a failed import in the block into an error with the command that installs the package.

    An `extra` of None means that the package is installed under its own name.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError.of(package, extra=extra, feature=feature) from error


def check_installed(*packages: str, extra: str | None, feature: str) -> None:
    """Raise an error with the install command for the first of these packages that is missing; import none of them."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError.of(package, extra=extra, feature=feature)
