"""`TrainerLegacy`: a name from another package, so that imports and `isinstance` hold."""

from typing import Any

from ..errors import ConfigError


class TrainerLegacy:
    """The base of `Trainer`. Its old protocol, the address of a server as data set, is gone."""

    @staticmethod
    def _refuse_address(name: str, dataset: Any) -> None:
        if isinstance(dataset, str):
            raise ConfigError(
                f"{name} is the text {dataset!r}: the old protocol, in which a data set was the address of a server, "
                "is gone. Give the tasks themselves: Trainer(...).fit(agent, train_dataset=[...], val_dataset=[...])"
            )
