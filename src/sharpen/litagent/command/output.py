"""What a program writes to one of its outputs: the beginning and the end are kept, however much there is."""

import asyncio

from ...errors import ConfigError

LAST_LINES, MAX_LAST = 20, 2_000


class Output(asyncio.Protocol):
    """Takes one output of a program from its pipe. Of more than `max_bytes` the middle is left out."""

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._head, self._tail = bytearray(), bytearray()
        self.size_bytes = 0
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.size_bytes += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:  # not at every piece, since each time moves what is kept
            del self._tail[: len(self._tail) - self._half]

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()

    @property
    def cut_bytes(self) -> int:
        """How much was left out."""
        return max(self.size_bytes - len(self._head) - self._half, 0)

    @property
    def text(self) -> str:
        """What was kept, with a line in the place of what was not."""
        end = self._tail[-self._half :]
        if not self.cut_bytes:
            return _decoded(self._head + end)
        return f"{_decoded(self._head)}\n[{self.cut_bytes} bytes left out]\n{_decoded(end)}"

    @property
    def last_lines(self) -> str:
        """The end, for a message."""
        lines = self.text[-MAX_LAST:].rstrip().splitlines()
        return "\n".join(lines[-LAST_LINES:])


def _decoded(data: bytearray) -> str:
    return data.decode("utf-8", "replace")


def check_max_bytes(value: int) -> int:
    """A bound that leaves room for a line at either end."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1024:
        raise ConfigError(f"max_output_bytes is {value!r}: give at least 1024")
    return value
