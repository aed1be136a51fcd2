"""Starting the process of a job.

It is a fresh interpreter in a session of its own, so that it outlives the one that starts it and Ctrl-C in a terminal
does not reach it. Registered functions travel over its standard input, never through a file. It does nothing until it
has read all of that: when its starter dies in between, it ends.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import ConfigError, describe
from ...logging import current_settings
from ..plain_json import write_json
from ..reward_runner import RewardFunction
from .jobs import Job
from .process import ProcessMark


def pack(functions: Mapping[str, RewardFunction]) -> bytes:
    """Functions as bytes; one that cannot travel is an error that names it."""
    import cloudpickle  # type: ignore[import-untyped]

    for name, function in functions.items():
        try:
            cloudpickle.dumps(function)
        except Exception as error:
            raise ConfigError(
                f"the reward {name!r} cannot be pickled for the process of a job ({describe(error)}): create what it "
                "refers to inside the function, then register it again"
            ) from error
    packed: bytes = cloudpickle.dumps(dict(functions))
    return packed


def launch(job: Job, *, base: Path, functions: bytes, allow_download: bool) -> None:
    """Start the process of a job and tell it what to do."""
    header: dict[str, Any] = {
        "folder": str(job.folder),
        "log": current_settings(),
        "functions_bytes": len(functions),
        # Functions are found where they are here. Without any, the job needs nothing but what is installed.
        "path": [os.path.abspath(each) for each in sys.path] if functions else [],
    }
    process = _start(job.folder, base, allow_download=allow_download)
    # Reaps it whenever it ends, also when nobody waits for the job.
    threading.Thread(target=process.wait, name=f"sharpen-{job.id}", daemon=True).start()
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:  # it has ended at once: its log tells
        mark = ProcessMark.of(process.pid)
        write_json(job.folder / "process.json", {"pid": process.pid, "started": "" if mark is None else mark.started})
        pipe.write(json.dumps(header).encode() + b"\n" + functions)


def _start(folder: Path, base: Path, *, allow_download: bool) -> "subprocess.Popen[bytes]":
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            [*_interpreter(), "-m", "sharpen.llm.tool.job"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=base,
            env=_environment(allow_download=allow_download),
        )


def _interpreter() -> list[str]:
    if not sys.executable:
        raise ConfigError(
            "sys.executable is not set, and jobs need a Python interpreter to run in: start this program with one"
        )
    # -P: a file in the base folder must not take the place of a module that the job imports.
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]


def _environment(*, allow_download: bool) -> dict[str, str]:
    """The job finds this package where its starter found it, and the hub only where that is allowed."""
    here = str(Path(__file__).parents[3])
    before = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": here + os.pathsep + before if before else here}
    environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if not allow_download:
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return environment
