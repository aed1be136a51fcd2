"""The socket between rank 0 and another rank: frames of a length and so many bytes. When it closes, one has gone."""

import select
import socket
import struct
import threading

_LENGTH = struct.Struct("!Q")
_READ_BYTES = 1 << 20


class LinkClosed(Exception):
    """The other side has gone."""


class Link:
    """One end. Sending waits for the other side; receiving gives up after a while and can be tried again."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def send(self, frame: bytes, *, patience_seconds: float = -1) -> None:
        """Whole frames, whoever sends. With a patience it is left out while another one takes longer."""
        if not self._sending.acquire(timeout=patience_seconds):
            return
        try:
            self._end.sendall(_LENGTH.pack(len(frame)))
            self._end.sendall(frame)
        except OSError as error:
            raise LinkClosed from error
        finally:
            self._sending.release()

    def receive(self, seconds: float | None = None) -> bytes | None:
        """The next frame; None when it did not come in time."""
        while (frame := self._next_frame()) is None:
            if seconds is not None and not self._is_readable(seconds):
                return None
            try:
                data = self._end.recv(_READ_BYTES)
            except OSError as error:
                raise LinkClosed from error
            if not data:
                raise LinkClosed
            self._buffer += data
        return frame

    def close(self) -> None:
        self._end.close()

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return frame

    def _is_readable(self, seconds: float) -> bool:
        try:
            waiting = select.poll()
            waiting.register(self._end, select.POLLIN)
            return bool(waiting.poll(seconds * 1000))
        except (OSError, ValueError) as error:
            raise LinkClosed from error
