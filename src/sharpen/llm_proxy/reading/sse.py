"""Server-sent events from bytes that arrive in any pieces.

Only the data of an event is handed on: its name stands in the data too, in every API that is read here.
"""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventStream:
    """Splits a stream into the data of its events; the pieces may be cut anywhere."""

    __slots__ = ("_data", "_is_after_cr", "_is_at_start", "_rest")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._is_after_cr = False
        self._is_at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that end in this piece, in their order; events without data give none."""
        if self._is_after_cr or b"\r" in piece:
            piece = self._with_plain_ends(piece)
        if b"\n" not in piece:
            # Kept apart until the line ends: a long line in many pieces is not copied with each of them.
            self._rest.append(piece)
            return []
        lines = b"".join([*self._rest, piece]).split(b"\n")
        self._rest = [lines.pop()]
        return self._read(lines)

    def end(self) -> list[bytes]:
        """What the last lines hold where the stream ends without the blank line that ends an event."""
        return self._read([b"".join(self._rest), b""])

    def _with_plain_ends(self, piece: bytes) -> bytes:
        """Lines may end with CR, LF or both; JSON holds neither as it is."""
        if self._is_after_cr and piece[:1] == b"\n":
            piece = piece[1:]
            self._is_after_cr = False
        if piece:
            self._is_after_cr = piece[-1:] == b"\r"
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read(self, lines: list[bytes]) -> list[bytes]:
        if self._is_at_start:
            self._is_at_start = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        found = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                found.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
        return [data for data in found if data]
