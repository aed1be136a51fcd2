"""What an actor is given, and how it settles on its node: the same log, the modules that came along, and secrets in its
environment, which are shown nowhere."""

import os
import shutil
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...errors import RunnerStartError, TransportError
from ...logging import LogSettings, apply_settings, current_settings
from ...runner.bundle import unpack
from .luggage import unload

Parcel = tuple[bytes, bytes]
"""A pickled bundle, and the modules that it needs."""


@dataclass(frozen=True)
class Surroundings:
    """Of the program, for its actors."""

    url: str
    token: str | None = field(repr=False)
    secrets: dict[str, str] = field(repr=False)
    """Environment variables."""
    log: LogSettings
    host_name: str
    client: dict[str, Any] = field(default_factory=dict)
    """Options of clients of the store."""

    @classmethod
    def of_this_process(
        cls, url: str, token: str | None, secrets: dict[str, str], client: dict[str, Any] | None = None
    ) -> "Surroundings":
        return cls(url, token, secrets, current_settings(), socket.gethostname(), client or {})

    def take_over(self, role: str) -> None:
        """Files of the log are those of the program's machine."""
        os.environ.update(self.secrets)
        files = self.log["files"] if socket.gethostname() == self.host_name else []
        apply_settings({**self.log, "files": files}, role=role)


class Arrival:
    """An actor on its node. Processes of Ray end without a word, so `leave` is called while there is time."""

    def __init__(self, version: str, surroundings: Surroundings, role: str) -> None:
        _check_version(version)
        surroundings.take_over(role)
        self._folder: Path | None = None

    def unpack(self, parcel: Parcel) -> Any:
        """The bundle, with its modules where they are found."""
        data, luggage = parcel
        if luggage:
            self._folder = unload(luggage)
            sys.path.insert(0, str(self._folder))
        try:
            return unpack(data)
        except ModuleNotFoundError as error:
            raise TransportError(
                f"the node {socket.gethostname()} has no module {error.name!r}, which the agent needs: install it "
                "there, or pass it with runtime_env={'pip': [...]} or {'py_modules': [...]}"
            ) from error

    def leave(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _check_version(version: str) -> None:
    if version != __version__:
        raise RunnerStartError(
            f"the node {socket.gethostname()} has Sharpen {__version__}, but the program has {version}: install the "
            "same version on every node"
        )
