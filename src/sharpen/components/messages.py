"""How the errors of this room show a spec and suggest a name.

A value under a key that looks like a secret is never shown, not even in part: hiding comes before cutting.
"""

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ..secrets import HIDDEN, looks_secret, without_secrets

MAX_SHOWN = 80


@dataclass(frozen=True)
class Origin:
    """Where a spec was given. It opens every message, and is put into words only when there is an error."""

    spec_name: str
    spec: object

    def __str__(self) -> str:
        return f"{self.spec_name}={shown(self.spec)}"


class _HidingRepr(reprlib.Repr):
    """The repr of any object, also of one whose own repr fails, with secrets of dicts hidden."""

    def __init__(self) -> None:
        super().__init__()
        # Far above MAX_SHOWN: a text cut in its middle could lose the key and keep the secret.
        self.maxstring = self.maxother = 10_000

    def repr_dict(self, x: Mapping[object, object], level: int) -> str:
        if level <= 0:
            return "{...}"
        return "{" + ", ".join(self._pair(key, value, level - 1) for key, value in islice(x.items(), MAX_SHOWN)) + "}"

    def _pair(self, key: object, value: object, level: int) -> str:
        return f"{self.repr1(key, level)}: {HIDDEN if looks_secret(str(key), value) else self.repr1(value, level)}"


def shown(value: object) -> str:
    """The repr of a value, cut to one line, without secrets."""
    text = without_secrets(_HidingRepr().repr(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known names, or nothing when none is near."""
    by_folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=3)
    return f" Did you mean {' or '.join(repr(by_folded[each]) for each in close)}?" if close else ""


def listed(names: Sequence[str], *, limit: int = 6) -> str:
    """Names for a sentence; a long list ends with how many are left."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def name_of(thing: object) -> str:
    """What people call a class or a function."""
    return str(getattr(thing, "__name__", type(thing).__name__))
