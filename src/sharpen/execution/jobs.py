"""The jobs that the processes of a run get from their parent. Secrets go this way only, never on a command line."""

from dataclasses import dataclass, field
from typing import Any, Literal


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
