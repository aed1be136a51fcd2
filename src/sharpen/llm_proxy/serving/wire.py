"""What a gateway's process and its parent say to each other: one JSON object a line, over standard input and output.

The parent sends one job, then orders. The child says that it is ready, answers orders by their number, and says last
how things stood when it ended. Secrets go this way only, never on a command line or into an environment.
"""

import os
import sys

import msgspec

from ... import errors
from ...errors import RunError, SharpenError, text_of
from ...logging import LogSettings, current_settings
from ...store.opening import StoreAddress
from ..settings import GatewaySettings
from .orders import Answer, Order

READY = 0
ENDED = -1


class Job(msgspec.Struct, frozen=True):
    """What a child is to serve, and what it takes over from its parent."""

    settings: GatewaySettings
    store: StoreAddress | None
    socket: int
    """The number of the listening socket, which is inherited."""
    parent: int = msgspec.field(default_factory=os.getpid)
    path: list[str] = msgspec.field(default_factory=lambda: list(sys.path))
    log: LogSettings = msgspec.field(default_factory=current_settings)


class Asked(msgspec.Struct, frozen=True):
    """An order, and the number that its answer will have."""

    number: int
    order: Order


class Problem(msgspec.Struct, frozen=True):
    """An error on its way to the other process."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> "Problem":
        return cls(type(error).__name__, text_of(error))

    def as_error(self) -> SharpenError:
        """The error as it was raised over there, where it is one of ours."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, SharpenError):
            return kind(self.message)
        return RunError(f"{self.kind}: {self.message}")


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a child says."""

    number: int
    answer: Answer | None = None
    error: Problem | None = None


encode = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
decode_asked = msgspec.json.Decoder(Asked).decode
decode_told = msgspec.json.Decoder(Told).decode


def line_of(message: Job | Asked | Told) -> bytes:
    return encode(message) + b"\n"
