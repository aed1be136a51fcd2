"""How the errors of this room show a spec and suggest a name."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..secrets import shown


@dataclass(frozen=True)
class Origin:
    """Where a spec was given. It opens every message, and is put into words only when there is an error."""

    spec_name: str
    spec: object

    def __str__(self) -> str:
        return f"{self.spec_name}={shown(self.spec)}"


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
