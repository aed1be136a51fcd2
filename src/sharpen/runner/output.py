"""A bound on what one attempt may print, so that an agent gone wild does not fill the log or the disk."""

import contextlib
import contextvars
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ..errors import AgentOutputError


class _Allowance:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.left = size_bytes


_allowance: contextvars.ContextVar[_Allowance | None] = contextvars.ContextVar("sharpen_allowance", default=None)


class _Counted:
    """A stream that counts what an attempt writes to it; everything else goes to the stream behind it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: Any) -> Any:
        allowance = _allowance.get()
        if allowance is not None:
            allowance.left -= len(text)
            if allowance.left < 0:
                raise AgentOutputError(
                    f"the agent printed more than {allowance.size_bytes} bytes: print less, "
                    "or give the runner a larger max_output_bytes (None for no bound)"
                )
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Streams:
    """Standard output and error of this process, counted while a runner is at work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._counted: list[tuple[str, _Counted]] = []

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._counted = [(name, _Counted(getattr(sys, name))) for name in ("stdout", "stderr")]
                for name, counted in self._counted:
                    setattr(sys, name, counted)

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for name, counted in self._counted:
                    if getattr(sys, name) is counted:
                        setattr(sys, name, counted._stream)


_streams = _Streams()


@contextlib.contextmanager
def counted_output() -> Iterator[None]:
    """Count what attempts print as long as this is open."""
    _streams.enter()
    try:
        yield
    finally:
        _streams.leave()


@contextlib.contextmanager
def at_most(size_bytes: int | None) -> Iterator[None]:
    """Code inside, with its tasks and threads, may print this much."""
    token = _allowance.set(None if size_bytes is None else _Allowance(size_bytes))
    try:
        yield
    finally:
        _allowance.reset(token)
