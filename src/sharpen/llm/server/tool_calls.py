"""Tool calls in a text: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen write them.

Text is read in pieces, so that streams and whole answers come out the same. What looks like a call and is none stays
text, and so does what stands around calls, but for empty space beside them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

BEGIN, END = "<tool_call>", "</tool_call>"


class _Written(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Written).decode


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it; `arguments` are JSON, in its own spelling."""

    id: str
    name: str
    arguments: str


class ToolCallReader:
    """Takes the text of one answer apart. `origin` makes the ids of its calls its own, and the same every time."""

    def __init__(self, origin: bytes) -> None:
        self._origin = origin
        self._text = ""
        self._space = ""  # let out with the text that follows, dropped beside a call
        self._is_inside = False
        self.num_calls = 0

    def feed(self, text: str) -> Iterator[str | ToolCall]:
        """Texts and calls that are certain by now."""
        self._text += text
        while True:
            mark = END if self._is_inside else BEGIN
            before, found, rest = self._text.partition(mark)
            if not found:
                break
            self._text = rest
            yield from self._call(before, END) if self._is_inside else self._plain(before)
            self._is_inside = not self._is_inside
        if not self._is_inside:
            certain = len(self._text) - _overlap(self._text, BEGIN)
            text, self._text = self._text[:certain], self._text[certain:]
            yield from self._plain(text)

    def finish(self) -> Iterator[str | ToolCall]:
        """There is no more text: what was held back."""
        text, self._text = self._text, ""
        if self._is_inside:
            yield from self._call(text, "")
        else:
            yield from self._plain(text)
        if self._space and not self.num_calls:
            yield self._space

    def _plain(self, text: str) -> Iterator[str]:
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            yield shown

    def _call(self, written: str, end: str) -> Iterator[str | ToolCall]:
        call = self._read(written)
        if call is None:
            yield from self._plain(BEGIN + written + end)
        else:
            self._space = ""
            self.num_calls += 1
            yield call

    def _read(self, written: str) -> ToolCall | None:
        try:
            found = _decode(written)
        except (msgspec.DecodeError, RecursionError):
            return None
        arguments = bytes(found.arguments) or bytes(found.parameters) or b"{}"
        text = msgspec.json.decode(arguments) if arguments[:1] == b'"' else arguments.decode()
        place = f"{self.num_calls} {written}".encode()
        return ToolCall(f"call_{blake2b(place, key=self._origin, digest_size=12).hexdigest()}", found.name, text)


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of the text may begin the mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
