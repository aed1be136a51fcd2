"""Where a value of a configuration came from, and which value an error is about."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ...checks import setting_of
from ...errors import ComponentError, ComponentTypeError, SharpenError

Path_ = tuple[str | int, ...]
"""The keys that lead to a value: `("callbacks", 0, "patience")`."""


@dataclass(frozen=True)
class Source:
    """A place of the file, an override, a variable of the environment, or a default."""

    kind: Literal["file", "override", "environment", "default"]
    text: str
    """The place as it is printed: `config.yaml:12`, `n_runners=4`, `$MODEL`."""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.text

    def exact(self) -> str:
        """With the column, where there is one."""
        return self.text if self.column is None else f"{self.text}:{self.column}"


DEFAULT = Source("default", "default")


def dotted(path: Sequence[str | int]) -> str:
    """A path as people write it: `callbacks.0.patience`."""
    return ".".join(map(str, path))


# Not a part of a path of files.
_WORD = re.compile(r"(?<![\w./\\-])\w[\w.]*\b")


def settings_named(error: SharpenError) -> Iterator[str]:
    """The settings an error may be about, likeliest first: the one it is marked with, then the names in its message.

    A plain word such as `model` counts only at the beginning of the message; a name with an underscore or a dot counts
    anywhere. The message of a component error quotes the whole spec, so its words say nothing.
    """
    setting = setting_of(error)
    if setting is not None:
        yield setting
    if isinstance(error, ComponentError | ComponentTypeError):
        return
    for found in _WORD.finditer(str(error)):
        word = found.group()
        if found.start() == 0 or "_" in word or "." in word:
            yield word


def keys_of(setting: str) -> Path_:
    """The path of a dotted name: `model_list.0` is `("model_list", 0)`."""
    return tuple(int(key) if key.isdecimal() else key for key in setting.split("."))
