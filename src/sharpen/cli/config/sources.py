"""Where a value of a configuration came from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Path_ = tuple[str | int, ...]
"""The keys that lead to a value: `("callbacks", 0, "patience")`."""


@dataclass(frozen=True)
class Source:
    """A place of the file, an override, a variable of the environment, or a default."""

    kind: Literal["file", "override", "environment", "default"]
    text: str
    """The place in words: `config.yaml:12`, `n_runners=4`, `$MODEL`."""
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
