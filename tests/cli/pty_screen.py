"""A real terminal of a given width, which commands in this process print to."""

import fcntl
import os
import pty
import struct
import sys
import termios
import threading

import pytest

from sharpen.cli import main


def shown_at(width: int, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `sharpen ...` prints to a terminal so wide, without colours."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    parts: list[bytes] = []
    reader = threading.Thread(target=_read, args=(master, parts))
    reader.start()
    with monkeypatch.context() as patch, open(slave, "w", encoding="utf-8") as screen:
        patch.delenv("COLUMNS", raising=False)
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "stdout", screen)
        main(arguments)
    reader.join()
    os.close(master)
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(master: int, parts: list[bytes]) -> None:
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other side is closed
            return
        if not data:
            return
        parts.append(data)
