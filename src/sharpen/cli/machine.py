"""The checks of `sharpen doctor` for the machine: processors, memory, GPU, disk, ports, clock.

Each check tries the real thing where that is cheap: a store is created in the runs folder and removed again, ports are
bound, the clock of the disk is compared with that of the machine.
"""

import asyncio
import os
import platform
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import SharpenError
from .addresses import DASHBOARD_PORT, GATEWAY_PORT, STORE_PORT
from .findings import Finding

LITTLE_BYTES = 2 * 2**30
TOO_LITTLE_BYTES = 100 * 2**20
SKEW_SECONDS = 2.0
_SOONEST = 1_735_689_600  # 2025: an earlier clock was never set
_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,memory.free,driver_version", "--format=csv,noheader")


def machine_findings(*, is_deep: bool = False) -> list[Finding]:
    """Return the results of all checks, in the order of the page."""
    return [
        Finding("system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        _processors(),
        _memory(),
        _deep_torch() if is_deep else _gpu(),
        *_disk(),
        _loopback(),
        _port(STORE_PORT, "sharpen store"),
        _port(DASHBOARD_PORT, "sharpen dashboard"),
        _port(GATEWAY_PORT, "sharpen gateway"),
        _variables(),
    ]


# -- processors and memory ---------------------------------------------------------------------------


def _processors() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, given = _quota(), os.environ.get("OMP_NUM_THREADS")
    threads = f"OMP_NUM_THREADS={given}" if given else f"torch uses up to {usable} threads"
    if quota is None or quota >= usable or given:
        return Finding("processors", "ok", f"{usable} cores; {threads}")
    advice = f"set OMP_NUM_THREADS={max(int(quota), 1)}: more threads than processors slow each other down"
    return Finding(
        "processors", "note", f"{usable} cores, but this container is limited to {quota:g}; {threads}", advice
    )


def _quota() -> float | None:
    """Return how many processors a container may use; None if unlimited."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def _memory() -> Finding:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return Finding("memory", "note", "unknown on this system")
    return Finding("memory", "ok", f"{_size(total)} total")


# -- GPU ---------------------------------------------------------------------------------------------


def _gpu() -> Finding:
    """Ask the driver's own tool: loading torch takes seconds."""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return Finding("GPU", "ok", "Apple GPU (Metal)")
    if shutil.which(_SMI[0]) is None:
        return Finding("GPU", "note", "no GPU found: models run on the CPU")
    try:
        asked = subprocess.run(_SMI, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("GPU", "note", f"{_SMI[0]} failed: {error}", "check the GPU driver")
    return Finding("GPU", "ok", "; ".join(asked.stdout.strip().splitlines()))


def _deep_torch() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("GPU", "note", f"cannot load torch: {error}", "pip install 'sharpen[llm]'")
    about = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    if not torch.cuda.is_available():
        return Finding("GPU", "note", f"{about}, no usable GPU")
    names = ", ".join(torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count()))
    return Finding("GPU", "ok", f"{about}, CUDA {torch.version.cuda}: {names}")


# -- disk and clock ----------------------------------------------------------------------------------


def _disk() -> Iterator[Finding]:
    """Check the runs folder, or where it would be created: free space, whether a store works there, and its clock."""
    from ..runs import runs_root

    root = runs_root().absolute()
    place = next(each for each in (root, *root.parents) if each.exists())
    yield _room(place, root)
    try:
        with _trial_folder(place) as folder:
            yield _store(folder, root)
            yield _clock(folder)
    except OSError as error:
        text = f"cannot write to {root}: {error.strerror}"
        yield Finding("store", "broken", text, "set SHARPEN_RUNS to a writable folder")


def _room(place: Path, root: Path) -> Finding:
    free = shutil.disk_usage(place).free
    text = f"{_size(free)} free for runs in {root}"
    if free >= LITTLE_BYTES:
        return Finding("disk", "ok", text)
    advice = "remove old runs (sharpen runs rm), or set SHARPEN_RUNS to another disk"
    return Finding("disk", "broken" if free < TOO_LITTLE_BYTES else "note", text, advice)


@contextmanager
def _trial_folder(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        raise NotADirectoryError(20, f"{place} is not a folder")
    with tempfile.TemporaryDirectory(dir=place, prefix=".sharpen-doctor-") as name:
        yield Path(name)


def _store(folder: Path, root: Path) -> Finding:
    from ..store.sqlite import SQLiteStore

    try:
        asyncio.run(SQLiteStore(folder / "store.db").close())
    except (SharpenError, sqlite3.Error) as error:
        advice = "set SHARPEN_RUNS to a folder on a local disk"
        return Finding("store", "broken", f"cannot create a store in {root}: {error}", advice)
    return Finding("store", "ok", f"works in {root}; SQLite {sqlite3.sqlite_version}")


def _clock(folder: Path) -> Finding:
    """Leases and records use the clock: it must be set, and agree with that of the disk."""
    file = folder / "clock"
    file.touch()
    now = time.time()
    skew = file.stat().st_mtime - now
    said = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if now < _SOONEST:
        return Finding("clock", "note", f"{said} is in the past", "set the clock of this machine")
    if abs(skew) > SKEW_SECONDS:
        return Finding(
            "clock", "note", f"{said}; the clock of the disk differs by {skew:.1f} s", "synchronise both with NTP"
        )
    return Finding("clock", "ok", said)


# -- ports and variables -----------------------------------------------------------------------------


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        text = f"cannot use ports on 127.0.0.1: {error}"
        return Finding(
            "loopback", "broken", text, "runners connect to the store there: check the sandbox or the firewall"
        )
    return Finding("loopback", "ok", "ports on 127.0.0.1 work")


def _port(port: int, what: str) -> Finding:
    name = f"port {port}"
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        return Finding(name, "note", f"default port of {what}, not available ({error.strerror}): use --port")
    return Finding(name, "ok", f"free, default port of {what}")


def _variables() -> Finding:
    """List the names only: a value may be a secret."""
    names = (
        ", ".join(sorted(name for name in os.environ if name.startswith("SHARPEN_")))
        or "no SHARPEN_* variables are set"
    )
    return Finding("variables", "ok", names)


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
