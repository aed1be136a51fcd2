"""Rewards that keep the process of their job busy, or break it, before anything is trained.

They travel as every registered function does; what happens, happens when they are unpacked over there.
"""

import signal
import time
from collections.abc import Callable
from typing import Any


class WaitingReward:
    """Waits until its process is ended."""

    def __init__(self, *, ignores_stop: bool = False) -> None:
        self.ignores_stop = ignores_stop

    def __call__(self, completions: list[Any], **columns: Any) -> list[float]:
        return [0.0 for _ in completions]

    def __reduce__(self) -> tuple[Callable[..., object], tuple[bool]]:
        return _keep_busy, (self.ignores_stop,)


class BrokenReward(WaitingReward):
    """Cannot be unpacked."""

    def __reduce__(self) -> tuple[Callable[..., object], Any]:
        return _fail, ()


class ExitingReward(WaitingReward):
    """Ends its process in the middle of work, with a last word."""

    def __reduce__(self) -> tuple[Callable[..., object], Any]:
        return _exit, ()


def _keep_busy(ignores_stop: bool) -> None:
    if ignores_stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("busy now", flush=True)
    while True:
        time.sleep(0.05)


def _fail() -> None:
    raise OSError("the garden is closed")


def _exit() -> None:
    raise SystemExit("out of the door")
