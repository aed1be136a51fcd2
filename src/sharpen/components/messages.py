"""How the errors of this room show a spec and suggest a name.

A value under a key that looks like a secret is never shown, not even in part: hiding comes before cutting.
"""

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

MAX_SHOWN = 80
HIDDEN = "***"
# Headers are hidden whole: any of them may be what opens a server, whatever its name.
_SECRET = r"api_?key|access_?key|private_?key|token|password|passwd|secret|credential|authorization|headers"
_SECRET_KEY = re.compile(_SECRET, re.IGNORECASE)
# `Client(api_key='…')` inside the repr of an object; what is not a plain value is hidden to the end of the text.
_SECRET_VALUE = re.compile(
    rf"""((?:{_SECRET})\w*['"]?\s*[=:]\s*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.+/*-]+(?=[\s,&)\]}}'"]|$)|.*)""",
    re.IGNORECASE | re.DOTALL,
)
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")


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
        is_secret = _SECRET_KEY.search(str(key)) is not None
        return f"{self.repr1(key, level)}: {HIDDEN if is_secret else self.repr1(value, level)}"


def shown(value: object) -> str:
    """The repr of a value, cut to one line, without secrets."""
    text = _SECRET_VALUE.sub(rf"\g<1>{HIDDEN}", _HidingRepr().repr(value))
    text = _URL_LOGIN.sub(HIDDEN, text)
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
