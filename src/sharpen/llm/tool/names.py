"""Names that people and agents give to data sets and rewards."""

import re

from ...checks import did_you_mean
from ...errors import ConfigError
from ...secrets import shown

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def check_name(kind: str, name: object) -> str:
    """A name that can stand in JSON, on a screen and beside paths."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name of a {kind} is {shown(name)}: use at most 64 letters, digits, '_', '-' and '.', "
            "starting with a letter"
        )
    return name


def unknown(kind: str, name: str, known: list[str]) -> str:
    """The words for a name that nothing has."""
    return f"this {kind} does not exist; available: {', '.join(known) or 'none'}.{did_you_mean(name, known)}"
