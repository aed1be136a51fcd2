"""Keys of upstreams: written as references, read at the moment of use, shown never.

`env:NAME` and LiteLLM's `os.environ/NAME` name a variable of the environment of the gateway; anything else is the key.
"""

import os

from ..calls import Refusal

_REFERENCES = ("env:", "os.environ/")
HIDDEN = "***"


def variable_of(text: str) -> str | None:
    """The variable that a reference names; None for a literal."""
    return next((text.removeprefix(prefix) for prefix in _REFERENCES if text.startswith(prefix)), None)


def resolve(text: str, *, what: str) -> str:
    """The secret itself. A variable that is not set is an answer to the agent, which names it."""
    variable = variable_of(text)
    secret = (text if variable is None else os.environ.get(variable, "")).strip()
    if secret and secret.isascii() and secret.isprintable():
        return secret
    source = what if variable is None else f"{what} is {text!r}, but the environment variable {variable}"
    if secret:
        raise Refusal(500, "malformed_key", f"{source} holds characters that no HTTP header can carry")
    raise Refusal(
        500, "missing_key", f"{source} is {'empty' if variable is None else 'not set where the gateway runs'}"
    )


def hidden(text: str | None) -> str | None:
    """For people: a reference as it is, a key as stars."""
    return text if text is None or variable_of(text) else HIDDEN
