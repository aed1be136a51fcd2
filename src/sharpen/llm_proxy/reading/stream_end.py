"""Where a streamed answer is over, although its connection is still open.

Clients stop reading at the last event, so a span has to be stored before that event is passed on.
"""

import re

from ..calls import Api

# Inside a string of JSON there are no line breaks: a line that reads like this is one.
_LAST_EVENT: dict[Api, re.Pattern[bytes]] = {
    "chat": re.compile(rb"(?:\A|[\r\n])(?P<mark>data: ?\[DONE\])[\r\n]"),
    "completions": re.compile(rb"(?:\A|[\r\n])(?P<mark>data: ?\[DONE\])[\r\n]"),
    "messages": re.compile(rb"(?:\A|[\r\n])(?P<mark>event: ?message_stop)[\r\n]"),
    "responses": re.compile(
        rb"(?:\A|[\r\n])(?P<mark>event: ?(?:response\.(?:completed|failed|incomplete)|error))[\r\n]"
    ),
}
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_MARK = 40


class StreamEnd:
    """Looks at the pieces of one stream, which may be cut anywhere."""

    __slots__ = ("_is_last_event", "_pattern", "_tail")

    def __init__(self, api: Api) -> None:
        self._pattern = _LAST_EVENT.get(api)
        self._tail = b""
        self._is_last_event = False

    def find(self, piece: bytes) -> int | None:
        """Where in this piece the last event begins, if it also ends with it; 0 when it began before."""
        if self._pattern is None:
            return None
        seen, before, begin = self._tail + piece, len(self._tail), 0
        self._tail = seen[-_LONGEST_MARK:]
        if not self._is_last_event:
            found = self._pattern.search(seen)
            if found is None:
                return None
            self._is_last_event, begin = True, max(0, found.start("mark") - before)
        return begin if seen.endswith(_BLANK_LINES) else None
