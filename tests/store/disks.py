"""A disk that is full, for real: a small file system in memory."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """A file system of its own that can grow. Skips where this user may not mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")

    def grow(new_size_bytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={new_size_bytes}", str(folder)], check=True)

    try:
        yield grow
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
