"""The token of a gateway: given as it is, or as a reference to the environment, which may be written down."""

import os

from ..errors import ConfigError
from ..secrets import ENV_PREFIX


def is_reference(token: object) -> bool:
    return isinstance(token, str) and token.startswith(ENV_PREFIX)


def resolve_token(token: str | None) -> str | None:
    """The token itself, read from the environment where it is a reference."""
    if token is None or not is_reference(token):
        return token
    name = token.removeprefix(ENV_PREFIX)
    if not os.environ.get(name):
        raise ConfigError(f"token is {token!r}, but the environment variable {name} is not set")
    return os.environ[name]
