"""Which model of a gateway an agent is given."""

from collections.abc import Sequence

from ...checks import listed
from ...errors import ConfigError
from .model_entry import ModelEntry


def names_of(entries: Sequence[ModelEntry]) -> list[str]:
    """The names that agents can ask for, in the order of the list."""
    return list(dict.fromkeys(entry.model_name for entry in entries))


def choose_model(model: str | None, entries: Sequence[ModelEntry]) -> str:
    """The model that was asked for, or the only one."""
    names = names_of(entries)
    known = listed(names) or "no models"
    if model is None and len(names) == 1 and "*" not in names[0]:
        return names[0]
    if model is None:
        raise ConfigError(f"no model is chosen, and the gateway has {known}: pass model=")
    if entries and not any(entry.matches(model) for entry in entries):
        raise ConfigError(f"model is {model!r}, which the gateway does not have: use one of {known}")
    return model
