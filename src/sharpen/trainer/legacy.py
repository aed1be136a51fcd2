"""`TrainerLegacy`: names from another package, so that programs written for it go on working, with a warning."""

import warnings
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..adapter import TraceAdapter

OLD_OPTIONS = {"n_workers": "n_runners", "max_tasks": "max_rollouts", "triplet_exporter": "adapter", "daemon": None}
"""Options of `Trainer` that are deprecated, and those in their place."""


class TrainerLegacy:
    """The base of `Trainer`. Its old protocol, the address of a server as data set, is gone."""

    n_runners: int | None
    max_rollouts: int | None
    adapter: "TraceAdapter[Any]"

    @staticmethod
    def _refuse_address(name: str, dataset: Any) -> None:
        if isinstance(dataset, str):
            raise ConfigError(
                f"{name} is the text {dataset!r}: the old protocol, in which a data set was the address of a server, "
                "is gone. Give the tasks themselves: Trainer(...).fit(agent, train_dataset=[...], val_dataset=[...])"
            )

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
        raise ConfigError("fit_v0 is of the old protocol, which is gone: use fit(agent, train_dataset, val_dataset)")


def renamed(old: str, old_value: Any, new_value: Any) -> Any:
    """The value of an option that may be given under its old name."""
    if old_value is None:
        return new_value
    new = OLD_OPTIONS[old]
    if new_value is not None and new_value != old_value:
        raise ConfigError(f"{new} is {new_value!r}, but {old}, its old name, is {old_value!r}: give {new} only")
    warnings.warn(f"Trainer({old}=...) is deprecated: use {new}", DeprecationWarning, stacklevel=3)
    return old_value


def check_daemon(daemon: bool | None) -> None:
    """Runners always end with the run."""
    if daemon is None:
        return
    if daemon is not True:
        raise ConfigError(
            f"daemon is {daemon!r}, but runners always end with the process of the trainer: leave it out, or start "
            "runners that go on by themselves with strategy={'type': 'cs', 'role': 'runner'}"
        )
    warnings.warn(
        "Trainer(daemon=True) is deprecated and has no effect: runners always end with the run",
        DeprecationWarning,
        stacklevel=3,
    )
