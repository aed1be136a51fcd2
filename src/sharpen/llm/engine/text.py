"""Decoding tokens to text piece by piece, and finding stop strings in it.

A token may hold part of a character, so text is only released once it can no longer change; text that may be the
beginning of a stop string is held back until that is decided.
"""

import threading
from typing import Protocol

_BROKEN = "\ufffd"  # what a decoder writes for bytes that are not a whole character yet


class TextDecoder(Protocol):
    """The part of a tokenizer that the engine uses."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str: ...


class TextStream:
    """The text of one sample; it ends before the first stop string."""

    def __init__(self, decoder: TextDecoder, stop: tuple[str, ...] = ()) -> None:
        """Without stop strings and listeners, the tokens are only decoded when the text is read, all at once."""
        self._decoder, self._stop = decoder, stop
        self._is_eager = bool(stop)
        self._ids: list[int] = []
        self._window_start = self._read_to = 0  # ids[window_start:read_to] give the context of the next piece
        self._text = ""
        self._num_released = 0
        self._is_finished = False
        self._lock = threading.Lock()
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        """The whole text without the stop string; any thread may read it once the sample is finished."""
        with self._lock:
            self._read_rest()
            return self._text

    def append(self, token_id: int) -> str:
        """Add a token; return the text that can no longer change."""
        self._ids.append(token_id)
        if not self._is_eager:
            return ""
        piece = self._piece()
        if piece.endswith(_BROKEN):
            return ""
        return self._add_piece(piece)

    def finish(self) -> str:
        """End the text; return all that was held back."""
        self._is_finished = True
        if not self._is_eager:
            return ""
        self._read_rest()
        return self._release(len(self._text))

    def read_eagerly(self) -> str:
        """Decode each token as it comes from now on; return the text so far."""
        if not self._is_eager:
            self._is_eager = True
            piece = self._piece()
            if self._is_finished or not piece.endswith(_BROKEN):
                self._add_piece(piece)
        return self._text[: self._num_released]

    def _piece(self) -> str:
        # Decode a short window twice: decoders strip or join at edges, so the difference is the new text.
        before = self._decoder.decode(self._ids[self._window_start : self._read_to], skip_special_tokens=True)
        after = self._decoder.decode(self._ids[self._window_start :], skip_special_tokens=True)
        return after[len(before) :]

    def _add_piece(self, piece: str) -> str:
        self._window_start, self._read_to = self._read_to, len(self._ids)
        start = len(self._text)
        self._text += piece
        if self._cut_at_stop(start):
            return self._release(len(self._text))
        return self._release(len(self._text) - self._held_back())

    def _cut_at_stop(self, start: int) -> bool:
        found = [(self._text.find(stop, max(0, start - len(stop) + 1)), stop) for stop in self._stop]
        hits = [(place, stop) for place, stop in found if place >= 0]
        if not hits:
            return False
        place, self.stopped_by = min(hits, key=lambda hit: hit[0])
        self._text = self._text[:place]
        return True

    def _held_back(self) -> int:
        """Return how many characters at the end may begin a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _release(self, upto: int) -> str:
        out = self._text[self._num_released : upto]
        self._num_released = max(self._num_released, upto)
        return out

    def _read_rest(self) -> None:
        if self._read_to < len(self._ids) and self.stopped_by is None:
            piece = self._piece()
            self._window_start, self._read_to = self._read_to, len(self._ids)
            start = len(self._text)
            self._text += piece
            self._cut_at_stop(start)
