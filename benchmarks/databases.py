"""Throwaway database servers for benchmarks: PostgreSQL that syncs every commit, Redis that keeps a log.

They listen on loopback, ask for a password that nobody else knows, and are gone with their folders at the end.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POSTGRES_OPTIONS = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "256MB", "max_connections": "200"}


@dataclass(frozen=True)
class Database:
    """A server that runs, and the processes that it is made of."""

    url: str
    pid: int
    folder: Path

    def cpu_seconds(self) -> float:
        """CPU time of all its processes."""
        return cpu_seconds(self.pid, *children(self.pid))


def cpu_seconds(*pids: int) -> float:
    """The time on a core of all threads of processes, to the nanosecond; of threads that are still there."""
    return sum(_thread_seconds(task) for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def _thread_seconds(path: Path) -> float:
    try:
        return int(path.read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError):  # it has ended in this moment
        return 0.0


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


@contextlib.contextmanager
def postgres() -> Iterator[Database]:
    """A PostgreSQL server whose answers are on the disk."""
    folder, port, password = Path(tempfile.mkdtemp(prefix="sharpen-postgres-")), _free_port(), secrets.token_hex(16)
    user = _ordinary_user()
    try:
        secret = folder / "password"
        secret.write_text(password)
        _hand_over(folder, user)
        make: list[Any] = [
            _binary("initdb"),
            "-D",
            folder / "data",
            "-U",
            "sharpen",
            "-A",
            "scram-sha-256",
            "--no-sync",
        ]
        subprocess.run([*make, f"--pwfile={secret}"], check=True, stdout=subprocess.DEVNULL, cwd="/", **user)
        options = POSTGRES_OPTIONS | {"port": str(port), "listen_addresses": "127.0.0.1"}
        options["unix_socket_directories"] = str(folder)
        start: list[Any] = [_binary("postgres"), "-D", folder / "data"]
        for name, value in options.items():
            start += ["-c", f"{name}={value}"]
        url = f"postgresql://sharpen:{password}@127.0.0.1:{port}/postgres"
        with _running(start, folder / "log", lambda: _asks_postgres(url), **user) as process:
            yield Database(url, process.pid, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def redis(*, appendfsync: str = "everysec") -> Iterator[Database]:
    """A Redis server with `appendonly yes`."""
    folder, port, password = Path(tempfile.mkdtemp(prefix="sharpen-redis-")), _free_port(), secrets.token_hex(16)
    settings = ["bind 127.0.0.1", f"port {port}", f"dir {folder}", 'save ""', f"requirepass {password}"]
    settings += ["appendonly yes", f"appendfsync {appendfsync}"]
    try:
        (folder / "redis.conf").write_text("\n".join(settings))
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        start = [_binary("redis-server"), folder / "redis.conf"]
        with _running(start, folder / "log", lambda: _asks_redis(url)) as process:
            yield Database(url, process.pid, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _running(
    command: list[Any], log: Path, asks: Callable[[], None], **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written, cwd="/", **options)
    try:
        for _ in range(300):
            if process.poll() is not None:
                sys.exit(f"{command[0]} ended:\n{log.read_text()[-2000:]}")
            try:
                asks()
                break
            except Exception:  # noqa: BLE001 - whatever its driver raises while the server starts
                time.sleep(0.1)
        else:
            sys.exit(f"{command[0]} did not answer within 30 s:\n{log.read_text()[-2000:]}")
        yield process
    finally:
        process.send_signal(2)  # SIGINT: at once, in order
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _asks_postgres(url: str) -> None:
    import psycopg

    psycopg.connect(url, connect_timeout=2).close()


def _asks_redis(url: str) -> None:
    import redis as driver

    driver.Redis.from_url(url).ping()


def _binary(name: str) -> Path:
    """In the PATH, in POSTGRES_BIN, or where Debian puts it."""
    found = shutil.which(name)
    places = [Path(found)] if found else []
    if "POSTGRES_BIN" in os.environ:
        places.append(Path(os.environ["POSTGRES_BIN"]) / name)
    places += sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    for place in places:
        if place.exists():
            return place
    sys.exit(f"{name} is not installed: install PostgreSQL and Redis, or leave their measures out")


def _ordinary_user() -> dict[str, Any]:
    """PostgreSQL does not run as root."""
    if os.getuid() != 0:
        return {}
    entry = pwd.getpwnam("postgres")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _hand_over(folder: Path, user: dict[str, Any]) -> None:
    if user:
        for path in (folder, *folder.iterdir()):
            os.chown(path, user["user"], user["group"])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
