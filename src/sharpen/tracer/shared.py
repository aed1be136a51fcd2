"""Things of the whole process that tracers switch on together."""

import threading
from collections.abc import Callable
from typing import Any


class Shared:
    """Something that is on in this process while anybody holds it."""

    def __init__(self, switch_on: Callable[[], None], switch_off: Callable[[], None]) -> None:
        self._switch_on = switch_on
        self._switch_off = switch_off
        self._lock = threading.Lock()
        self._holders = 0

    def hold(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._switch_on()
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._switch_off()


class Patch:
    """A function in somebody else's class or module that is replaced for a while."""

    def __init__(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        self._owner = owner
        self._name = name
        self._replacement = replacement
        self._is_buried = False
        self.original: Callable[..., Any] = getattr(owner, name)

    def put_on(self) -> None:
        found = getattr(self._owner, self._name)
        if found is not self._replacement and not self._is_buried:
            self.original = found
            setattr(self._owner, self._name, self._replacement)

    def take_off(self) -> None:
        """Put the original back, unless somebody has wrapped the replacement: then it stays below theirs."""
        self._is_buried = getattr(self._owner, self._name) is not self._replacement
        if not self._is_buried:
            setattr(self._owner, self._name, self.original)
