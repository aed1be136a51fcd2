"""The dashboard at the address of the run's store: named here, made in the process that serves the store."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import ConfigError, MissingExtraError
from ..execution.serving import Mount
from ..runs import RunFolder

if TYPE_CHECKING:
    from .trainer import Trainer

PREFIX = "/dashboard"
FACTORY = "sharpen.dashboard.mounted:dashboard_app"


def mount_dashboard(trainer: "Trainer", folder: RunFolder | None) -> None:
    """Have the strategy serve the dashboard beside the store, where it serves one and jinja2 is installed."""
    strategy, wanted = trainer.strategy, trainer.dashboard
    others = [mount for mount in getattr(strategy, "mounts", ()) if mount.prefix != PREFIX]
    if not hasattr(strategy, "mounts"):
        if wanted:
            raise ConfigError(
                f"dashboard=True, but {type(strategy).__name__} does not serve the store: omit it, or use strategy='cs'"
            )
        return
    is_missing = find_spec("jinja2") is None
    if wanted and is_missing:
        raise MissingExtraError.of("jinja2", extra="dashboard", feature="the dashboard")
    if wanted is False or is_missing:
        strategy.mounts = others
        return
    options = {"name": "store"} if folder is None else {"name": folder.path.name, "run_path": str(folder.path)}
    strategy.mounts = [*others, Mount(PREFIX, FACTORY, "dashboard", options)]
