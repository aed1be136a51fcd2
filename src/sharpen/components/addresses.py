"""Parts that stand elsewhere are named by an address: a URL, or `env:NAME` for one that the environment holds, as it
should where a password is in it."""

import os
from typing import TypeGuard

from ..errors import ConfigError
from ..types.resources import ENV_PREFIX


def is_address(spec: object) -> TypeGuard[str]:
    """Whether a spec is the address of a part, and no name or import path."""
    return isinstance(spec, str) and ("://" in spec or spec.startswith(ENV_PREFIX))


def resolve_address(text: str) -> str:
    """The address itself, read from the environment where it is a reference; any other text is as it is."""
    if not text.startswith(ENV_PREFIX):
        return text
    name = text.removeprefix(ENV_PREFIX)
    found = os.environ.get(name, "").strip()
    if not found:
        raise ConfigError(f"the address is {text!r}, but the environment variable {name} is not set here")
    return found
