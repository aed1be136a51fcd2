"""Watches over the gateway of a run: one whose process has died starts again where it was.

It is a thread, since an algorithm may keep its event loop busy for long. One that was stopped stays so.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..errors import RunError, describe

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each start; when all were in vain, it is given up."""
STEADY_SECONDS = 60.0
"""After so long, a death is the first one again."""


class Mortal(Protocol):
    """A gateway that can be brought back."""

    def has_died(self) -> bool: ...
    def revive_sync(self) -> bool:
        """Start anew where it was, if it has died; False where it has not. After an error it is dead as before."""


class GatewayWatch(contextlib.AbstractContextManager["GatewayWatch"]):
    """Watches as long as the block lasts. `give_up` is called, in its thread, when `error` says why."""

    def __init__(self, gateway: Mortal, *, give_up: Callable[[], object]) -> None:
        self._gateway, self._give_up = gateway, give_up
        self._is_down = False
        self._restarts = self._tries = 0
        self._steady_at = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sharpen-gateway-watch", daemon=True)
        self.error: RunError | None = None

    def __enter__(self) -> "GatewayWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A start under way goes on: whoever stops the gateway next waits for it."""
        self._is_over.set()

    @property
    def notice(self) -> str:
        """What people who look at the run must know; mostly nothing."""
        if self._is_down:
            return "the gateway is down"
        times = "once" if self._restarts == 1 else f"{self._restarts} times"
        return f"the gateway was restarted {times}" if self._restarts else ""

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS) and self.error is None:
            if self._gateway.has_died():
                self._bring_back()

    def _bring_back(self) -> None:
        self._is_down = True
        died, why = time.monotonic(), "it kept dying"
        if died > self._steady_at:
            self._tries = 0
        while self._may_try(why):
            try:
                is_back = self._gateway.revive_sync()
            except Exception as error:  # noqa: BLE001 - whatever it was: it is tried again, and told in the end
                why = describe(error)
                log.warning("could not start the gateway of this run: %s", why)
                continue
            self._is_down = False
            if is_back:
                self._restarts += 1
                self._steady_at = time.monotonic() + STEADY_SECONDS
                log.warning(
                    "the gateway of this run is responding again, %.1f s after it died", time.monotonic() - died
                )
            return

    def _may_try(self, why: str) -> bool:
        """After the pause that is due; False at the end of the run, and when it is given up."""
        if self._tries == len(PAUSES):
            self.error = RunError(
                f"the gateway of this run died and did not come back after {self._tries} restarts ({why}): see "
                "its output on standard error; fit(..., resume='last') resumes the run"
            )
            log.error("%s", self.error)
            self._give_up()
            return False
        pause = PAUSES[self._tries]
        self._tries += 1
        log.warning(
            "the gateway of this run died: restart %d of %d%s",
            self._tries,
            len(PAUSES),
            f", in {pause:g} s" if pause else "",
        )
        return not self._is_over.wait(pause)
