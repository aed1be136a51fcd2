"""Ids, and checks of what callers pass in: each error names the value and what would be allowed."""

import math
import os
import time
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from ..errors import InvalidInputError
from ..semconv import PRIMARY_REWARD_VALUE
from ..types import Span
from ..types.spans import MAX_SEQUENCE_ID

MAX_ID_LENGTH = 200


def new_id(kind: str) -> str:
    """Return an id of this kind, such as `ro-019a…`: 12 hex digits of milliseconds and 16 of randomness.

    Ids made one after another lie side by side in an index.
    The 64 random bits of an attempt's id admit its agent to the gateway of a run. They are guessed online only, against
    attempts that are open for minutes: a million guesses a second for an hour find one of 1,000 with 2e-7.
    """
    return f"{kind}-{time.time_ns() // 1_000_000:012x}{os.urandom(8).hex()}"


def check_id(kind: str, value: str) -> str:
    """Ids stand in URLs and logs: printable, without spaces and slashes."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_LENGTH:
        raise InvalidInputError(f"{kind} is {value!r}: use a string of 1 to {MAX_ID_LENGTH} characters")
    if not _is_good_id(value):
        raise InvalidInputError(
            f"{kind} is {value!r}: use printable characters other than spaces and / \\ ? # %; 'latest' is reserved"
        )
    return value


@lru_cache(maxsize=1024)  # the same workers come again and again
def _is_good_id(value: str) -> bool:
    return value.isprintable() and not any(c in value for c in " /\\?#%") and value not in (".", "..", "latest")


def check_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    if value not in allowed:
        near = get_close_matches(str(value), list(allowed), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidInputError(f"{name} is {value!r}: use one of {', '.join(sorted(allowed))}{hint}")


def check_choices(name: str, values: Any, allowed: Collection[str]) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence | set | frozenset):
        raise InvalidInputError(f"{name} is {values!r}: pass a list of values from {', '.join(sorted(allowed))}")
    for value in values:
        check_choice(name, value, allowed)


def check_number(name: str, value: Any, *, low: float, high: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        upper = f" and at most {high:g}" if high < math.inf else ""
        raise InvalidInputError(f"{name} is {value!r}: use a number of at least {low:g}{upper}")


def check_finite(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInputError(f"{name} is {value!r}: use a finite number")


def check_spans(spans: Sequence[Span]) -> None:
    """A number beyond the bound would leave none for the next span; a reward that is not finite spoils every mean."""
    for span in spans:
        if span.sequence_id > MAX_SEQUENCE_ID:
            check_number(f"the sequence_id of span {span.span_id!r}", span.sequence_id, low=0, high=MAX_SEQUENCE_ID)
        if PRIMARY_REWARD_VALUE in span.attributes:
            check_finite(f"the reward of span {span.span_id!r}", span.attributes[PRIMARY_REWARD_VALUE])
