"""Where a streamed answer is over, although its connection is still open.

Clients stop reading at the last event, so a span has to be stored before that event is passed on.
"""

import re

from ..calls import Api

# Inside a string of JSON there are no line breaks: a line that begins like this is one. The word [DONE] says all; of
# an event with data the data have to come as well, up to its blank line.
_DONE = re.compile(rb"[\r\n](?P<mark>data: ?\[DONE\])")
_LAST_EVENT: dict[Api, re.Pattern[bytes]] = {
    "chat": _DONE,
    "completions": _DONE,
    "messages": re.compile(rb"[\r\n](?P<mark>event: ?message_stop)[\r\n]"),
    "responses": re.compile(rb"[\r\n](?P<mark>event: ?(?:response\.(?:completed|failed|incomplete)|error))[\r\n]"),
}
_BLANK_LINE = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_LINE_BREAK = re.compile(rb"[\r\n]")
_LONGEST_MARK, _LONGEST_BREAK = 40, 3


class StreamEnd:
    """Looks at the pieces of one stream, which may be cut anywhere."""

    __slots__ = ("_has_begun", "_pattern", "_tail", "is_over")

    def __init__(self, api: Api) -> None:
        self._pattern = _LAST_EVENT.get(api)
        self._tail = b"\n"
        self._has_begun = False
        self.is_over = False
        """Whether the last event has come to its end."""

    def find(self, piece: bytes) -> int | None:
        """Where in this piece the last event begins; 0 when it began before."""
        if self._pattern is None:
            return None
        seen, before, begin = self._tail + piece, len(self._tail), 0
        if not self._has_begun:
            self._tail = seen[-_LONGEST_MARK:]
            found = self._pattern.search(seen)
            if found is None:
                return None
            self._has_begun, begin = True, max(0, found.start("mark") - before)
            seen = seen[found.end("mark") :]
        ending = _LINE_BREAK if self._pattern is _DONE else _BLANK_LINE
        self.is_over = self.is_over or ending.search(seen) is not None
        self._tail = seen[-_LONGEST_BREAK:]
        return begin
