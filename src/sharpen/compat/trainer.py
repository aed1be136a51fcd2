"""Options and attributes of Agent Lightning's `Trainer` under their old names: they work, with a warning."""

import warnings
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..adapter import TraceAdapter

OLD_OPTIONS = {"n_workers": "n_runners", "max_tasks": "max_rollouts", "triplet_exporter": "adapter", "daemon": None}
"""Options of `Trainer` that are deprecated, and those in their place."""


class TrainerLegacy:
    """The base of `Trainer`, with the names of earlier versions of Agent Lightning."""

    n_runners: int | None
    max_rollouts: int | None
    adapter: "TraceAdapter[Any]"

    @property
    def n_workers(self) -> int | None:
        """The old name of `n_runners`."""
        return self.n_runners

    @property
    def max_tasks(self) -> int | None:
        """The old name of `max_rollouts`."""
        return self.max_rollouts

    @property
    def triplet_exporter(self) -> "TraceAdapter[Any]":
        """The old name of `adapter`."""
        return self.adapter

    def fit_v0(self, *args: Any, **kwargs: Any) -> None:
        raise ConfigError("fit_v0 is no longer supported: use fit(agent, train_dataset, val_dataset)")


def renamed(old: str, old_value: Any, new_value: Any) -> Any:
    """Return the value of an option that may have been passed under its old name."""
    if old_value is None:
        return new_value
    new = OLD_OPTIONS[old]
    if new_value is not None and new_value != old_value:
        raise ConfigError(f"{new} is {new_value!r}, but {old}, its old name, is {old_value!r}: pass only {new}")
    warnings.warn(f"Trainer({old}=...) is deprecated: use {new}", DeprecationWarning, stacklevel=3)
    return old_value


def refuse_address(name: str, dataset: Any) -> None:
    """Refuse the address of a server as a data set."""
    if isinstance(dataset, str):
        raise ConfigError(
            f"{name} is the str {dataset!r}: passing the address of a server as a data set is no longer supported. "
            "Pass the tasks: Trainer(...).fit(agent, train_dataset=[...], val_dataset=[...])"
        )


def check_daemon(daemon: bool | None) -> None:
    """Refuse `daemon=False` and warn about `daemon=True`."""
    if daemon is None:
        return
    if daemon is not True:
        raise ConfigError(
            f"daemon is {daemon!r}, but runners always end with the trainer's process: omit it, or start separate "
            "runners with strategy={'type': 'cs', 'role': 'runner'}"
        )
    warnings.warn(
        "Trainer(daemon=True) is deprecated and has no effect: runners always end with the run",
        DeprecationWarning,
        stacklevel=3,
    )
