"""Large tasks, which Redis keeps once for all rollouts that have them.

They are named by their hash, so what was read once never gets old.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable

from .connection import Connection

SHARED_BYTES = 1024  # a smaller one costs less than the sharing
CACHED_BYTES = 16 * 2**20


class ChangedMeanwhileError(Exception):
    """What was read does not fit together, since somebody else changed it: read again."""


class Bodies:
    """The large tasks of a store, from any thread."""

    def __init__(self, connection: Connection, max_bytes: int = CACHED_BYTES) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def name(self, body: bytes) -> str:
        """The name under which it is kept; it is known here from now on."""
        name = hashlib.sha256(body).hexdigest()[:40]
        self._keep(name, body)
        return name

    def get(self, name: str) -> bytes:
        with self._lock:
            found = self._known.get(name)
        return self.fetch([name])[name] if found is None else found

    def fetch(self, names: Iterable[str]) -> dict[str, bytes]:
        """Those that are not known here yet, in one trip."""
        with self._lock:
            wanted = [name for name in dict.fromkeys(names) if name not in self._known]
        if not wanted:
            return {}
        key = self._connection.key
        answers = self._connection.at_once(*(("HGET", key(f"body:{name}"), "d") for name in wanted))
        for name, body in zip(wanted, answers, strict=True):
            if body is None:
                raise ChangedMeanwhileError(f"the task {name} was deleted")
            self._keep(name, body)
        return dict(zip(wanted, answers, strict=True))

    def _keep(self, name: str, body: bytes) -> None:
        with self._lock:
            if name not in self._known:
                self._known[name] = body
                self._size += len(body)
            self._known.move_to_end(name)
            while self._size > self._max_bytes and len(self._known) > 1:
                self._size -= len(self._known.popitem(last=False)[1])
