"""The dashboard at the address of the run's store: named here, made in the process that serves the store."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import ConfigError, MissingExtraError
from ..execution.mounts import Mount
from ..runs import RunFolder

if TYPE_CHECKING:
    from .trainer import Trainer

PREFIX = "/dashboard"
FACTORY = "sharpen.dashboard.mounted:dashboard_app"
_PACKAGES = ("starlette", "jinja2")


def mount_dashboard(trainer: "Trainer", folder: RunFolder | None) -> None:
    """Have the strategy serve the dashboard beside the store, where it serves one and the packages are there."""
    strategy, wanted = trainer.strategy, trainer.dashboard
    others = [mount for mount in getattr(strategy, "mounts", ()) if mount.prefix != PREFIX]
    if not hasattr(strategy, "mounts"):
        if wanted:
            raise ConfigError(
                f"dashboard=True, but {type(strategy).__name__} serves no store: leave it out, or use strategy='cs'"
            )
        return
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if wanted and missing:
        raise MissingExtraError.of(missing[0], extra="dashboard", feature="the dashboard")
    if wanted is False or missing:
        strategy.mounts = others
        return
    options = {"name": "store"} if folder is None else {"name": folder.path.name, "run_path": str(folder.path)}
    strategy.mounts = [*others, Mount(PREFIX, FACTORY, "dashboard", options)]
