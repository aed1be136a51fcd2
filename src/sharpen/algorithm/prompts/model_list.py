"""The models that a server lists, for the question whether a name is right before anything is paid for.

Many servers have no such list, or one of another form. Only what is certain is said.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from ...checks import listed
from ...errors import RunError
from .call_failures import failure_of

# A key that may ask models, and may not list them.
_OF_LISTING = re.compile(r"\bscopes?\b|insufficient permissions", re.I)


def names_in(found: Any) -> list[str]:
    """The names in a list as it was sent; none where it has another form."""
    entries = found.get("data") if isinstance(found, dict) else found
    names = [each.get("id") for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    return [name for name in names if isinstance(name, str) and name]


def is_listed(model: str, names: Sequence[str]) -> bool:
    """A star stands for any end of a name, as the gateway reads it."""
    return any(model.startswith(name.partition("*")[0]) if "*" in name else model == name for name in names)


def not_listed(model: str, names: Sequence[str], *, place: str) -> str:
    """What to say of a model that is missing; names that are like its own come first."""
    near = get_close_matches(model, names, n=3)
    there = listed([*near, *(name for name in names if name not in near)])
    return f"{model!r} is not one of the models that {place} lists ({there}): calls to it may fail; check the name"


def failed_list(error: Exception, *, model: str, place: str, key: str) -> RunError | None:
    """What it means that there is no list: an error where calls would fail as well, None where nothing follows."""
    from openai import APIConnectionError, APITimeoutError

    failure = failure_of(error, model=model, place=place, key=key)
    if getattr(error, "status_code", None) in (401, 403):
        return None if _OF_LISTING.search(str(failure)) else failure
    is_slow = isinstance(error, APITimeoutError) and "Connect" not in type(error.__cause__).__name__
    if isinstance(error, APIConnectionError) and not is_slow:
        return RunError(f"{failure}; check that the server is running, and the base_url of the client")
    return None
