"""Running a program of `examples/` as a user does, in an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run_program(
    name: str, folder: Path, *arguments: str, timeout_seconds: float = 90, **more: str
) -> "subprocess.CompletedProcess[str]":
    """With one thread of torch's: other tests run beside it. Models are kept where the tests keep theirs."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "SHARPEN_SPOOL": str(folder / "spool"),
        "SHARPEN_CACHE": os.environ.get("SHARPEN_CACHE", str(folder / "cache")),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
        **more,
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def the_run(folder: Path) -> Path:
    (found,) = (folder / "runs").iterdir()
    return found
