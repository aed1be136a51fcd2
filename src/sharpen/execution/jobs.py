"""What a parent sends to a child: one job, and later the word to stop.

A job is a frame: two lengths, a header in JSON, and for runners the pickled bundle. The child's standard output and
error, and for a store its listening socket, travel beside the lengths as open files. Secrets (token, environment) go
this way only, never on a command line.
"""

import dataclasses
import json
import os
import socket
import struct
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from ..logging import LogSettings, apply_settings, current_settings

Role = Literal["runner", "store"]
STOP = b"stop\n"
LENGTHS = struct.Struct("!QQ")
MAX_FILES = 3


@dataclass(frozen=True)
class Surroundings:
    """What a child takes over from its parent, so that one started ahead is as good as a new one."""

    path: list[str]
    folder: str
    environment: dict[str, str]
    arguments: list[str]
    log: LogSettings

    @classmethod
    def of_this_process(cls) -> "Surroundings":
        return cls(list(sys.path), os.getcwd(), dict(os.environ), list(sys.argv), current_settings())

    def take_over(self, role: str) -> None:
        """Make this process like the one that sent the job."""
        sys.path[:] = self.path
        sys.argv[:] = self.arguments
        os.chdir(self.folder)
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        apply_settings(self.log, role=role)


@dataclass(frozen=True)
class RunnerJob:
    """Run a bundle against the store at `url`; a new token of its server is found in `token_file`. `client` are the
    options of the runner's client."""

    url: str
    token: str | None = field(repr=False)
    worker_id: int
    finished_before: int
    token_file: str | None = None
    client: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoreJob:
    """Serve a SQLite file on the socket that comes with the job."""

    database: str
    synchronous: Literal["normal", "full"]
    busy_seconds: float
    max_kept_bytes: int
    host: str
    token: str
    mounts: list[dict[str, Any]] = field(default_factory=list)
    """Fields of `Mount`."""


def encode(surroundings: Surroundings, job: RunnerJob | StoreJob) -> bytes:
    # The standard library's JSON keeps names and values that are no valid text, as an environment may hold.
    return json.dumps({"surroundings": dataclasses.asdict(surroundings), "job": dataclasses.asdict(job)}).encode()


def receive(link: socket.socket) -> tuple[dict[str, Any], bytes, list[int]] | None:
    """The header, the payload and the open files of a job; None when the parent has gone."""
    start, files, _, _ = socket.recv_fds(link, LENGTHS.size, MAX_FILES)
    lengths = start + _read(link, LENGTHS.size - len(start)) if start else b""
    if len(lengths) < LENGTHS.size:
        return None
    header_bytes, payload_bytes = LENGTHS.unpack(lengths)
    header, payload = _read(link, header_bytes), _read(link, payload_bytes)
    if len(header) < header_bytes or len(payload) < payload_bytes:
        return None
    return json.loads(header), payload, list(files)


def _read(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := link.recv(min(size - len(data), 1 << 20))):
        data += part
    return bytes(data)
