"""Keys of upstreams: written as references, read at the moment of use, shown never.

`env:NAME` and LiteLLM's `os.environ/NAME` name a variable of the environment of the gateway; anything else is the key.
A key may have been written into any field by mistake: so errors tell the kind of a wrong value, and show none.
"""

import os
import re

from ...errors import ConfigError
from ..calls import Refusal

_REFERENCES = ("env:", "os.environ/")
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
HIDDEN = "***"


def variable_of(text: str) -> str | None:
    """The variable that a reference names; None for a literal."""
    return next((text.removeprefix(prefix) for prefix in _REFERENCES if text.startswith(prefix)), None)


def check_reference(text: str, *, what: str) -> None:
    """A reference must name a variable. What cannot be its name may be a key, and is not shown."""
    variable = variable_of(text)
    if variable is not None and not _VARIABLE.fullmatch(variable):
        raise ConfigError(
            f"{what} is a reference without a valid name of an environment variable: use 'env:MY_KEY', "
            "or the key itself without 'env:'"
        )


def missing_variable(text: str) -> str | None:
    """The variable that a reference names, where the environment of this process lacks it."""
    variable = variable_of(text)
    return variable if variable is not None and not os.environ.get(variable, "").strip() else None


def resolve(text: str, *, what: str) -> str:
    """The secret itself. A variable that is not set is an answer to the agent, which names it."""
    variable = variable_of(text)
    secret = (text if variable is None else os.environ.get(variable, "")).strip()
    if secret and secret.isascii() and secret.isprintable():
        return secret
    source = what if variable is None else f"{what} is {text!r}, but the environment variable {variable}"
    code, problem = "missing_key", "is empty" if variable is None else "is not set for the gateway"
    if secret:
        code, problem = "malformed_key", "contains characters that are not allowed in an HTTP header"
    raise Refusal(500, code, f"{source} {problem}", should_retry=False)


def hidden(text: str | None) -> str | None:
    """For people: a reference as it is, a key as stars."""
    return text if text is None or _VARIABLE.fullmatch(variable_of(text) or "") else HIDDEN


def described(value: object) -> str:
    """For people: of a value in the wrong place, which may be or hold a key, only what kind it is."""
    return "None" if value is None else f"of type {type(value).__name__}"
