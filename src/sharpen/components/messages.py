"""How errors name a spec and what it leads to."""

from dataclasses import dataclass

from ..secrets import shown


@dataclass(frozen=True)
class Origin:
    """Where a spec was given. It opens every message, and is put into words only when there is an error."""

    spec_name: str
    spec: object

    def __str__(self) -> str:
        return f"{self.spec_name}={shown(self.spec)}"


def name_of(thing: object) -> str:
    """What people call a class or a function."""
    return str(getattr(thing, "__name__", type(thing).__name__))
