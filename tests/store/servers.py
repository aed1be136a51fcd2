"""Throwaway PostgreSQL and Redis servers for tests: real ones, on free loopback ports, in folders of their own.

A server that is killed keeps its folder and its port, so that it comes back as the same. Neither waits for the disk
where the promise is about killed processes only: what a process handed to the kernel survives its death.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from .processes import free_port
from .scenes import PATIENCE_SECONDS

POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_wal_size": "256MB",
    "logging_collector": "off",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
# A schema whose tables are made and empty again costs a tenth of a new one.
EMPTY_SCHEMA = """DO $$ DECLARE name text; BEGIN
FOR name IN SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = '{0}' AND tablename <> 'meta' LOOP
    EXECUTE 'DELETE FROM {0}.' || name;
END LOOP;
PERFORM setval('{0}.' || quote_ident(sequencename), 1, false) FROM pg_sequences WHERE schemaname = '{0}';
UPDATE {0}.meta SET value = 'st-' || gen_random_uuid() WHERE meta.name = 'store_id';
END $$"""


def find_program(name: str, *, variable: str, folders: str = "") -> str:
    """The program, from the folder that the variable names, the PATH or the usual folders."""
    places = [os.environ.get(variable, ""), *os.environ["PATH"].split(os.pathsep), *sorted(glob(folders), reverse=True)]
    found = shutil.which(name, path=os.pathsep.join(filter(None, places)))
    if found is None:
        pytest.skip(f"{name} is not installed here (apt-get install postgresql redis-server; or set {variable})")
    return found


class Server:
    """A server process with a folder and a port of its own."""

    def __init__(self, kind: str) -> None:
        self.port = free_port()
        self.password = secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix=f"sharpen-{kind}-"))
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def user(self) -> dict[str, Any]:
        """Whom the process runs as: `user` and `group` of a subprocess, nothing for ourselves."""
        return {}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server has said until now."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = self.command()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, **self.user()
            )
        _wait(lambda: self._process.poll() is not None or self.is_ready(), f"{command[0]} does not answer")
        assert self._process.poll() is None, self.log

    def kill(self) -> None:
        """SIGKILL to it and to all of its children, at once: none gets a chance to put anything in order."""
        if self._process is None:
            return
        family = [self.pid, *_children(self.pid)]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(PATIENCE_SECONDS)
        _wait(lambda: not any(_is_alive(pid) for pid in family), "a killed server does not end")
        self._process = None

    def stop(self) -> None:
        """Let it end in order, without waiting for its clients."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_SECONDS)
        self._process = None

    def restart(self) -> None:
        """Start it again, under the same address and with what it had kept."""
        self.stop()
        self.start()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)


class PostgresServer(Server):
    """A cluster with one database."""

    def __init__(self) -> None:
        super().__init__("postgres")
        self._data = self.folder / "data"
        self.settings = dict(POSTGRES_SETTINGS)
        self._spare: list[str] = []
        self._connection: Any = None

    def user(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        names = {entry.pw_name: entry for entry in pwd.getpwall()}  # it refuses to run as root
        entry = names.get("postgres") or names["nobody"]
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def create(self) -> None:
        """Make the cluster: once, before the first start."""
        word = self.folder / "password"
        word.write_text(self.password)
        for path in (self.folder, word):
            if owner := self.user():
                os.chown(path, owner["user"], owner["group"])
        arguments = ["-D", self._data, "-U", "sharpen", "--auth=md5", f"--pwfile={word}", "--no-sync", "-E", "UTF8"]
        made = subprocess.run(
            [_postgres_program("initdb"), *arguments, "--locale=C"],
            capture_output=True,
            cwd=self.folder,
            check=False,
            **self.user(),
        )
        assert made.returncode == 0, made.stderr.decode()

    def command(self) -> list[str]:
        places = ["-D", str(self._data), "-p", str(self.port), "-k", str(self.folder)]
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        return [_postgres_program("postgres"), *places, *settings]

    def is_ready(self) -> bool:
        import psycopg

        try:
            # A store that a failed test left open may hold locks.
            self._connection = psycopg.connect(self.url(), connect_timeout=5, autocommit=True)
            self._connection.execute("SET lock_timeout = '10s'")
        except psycopg.OperationalError:
            return False
        return True

    def promote(self) -> None:
        """Let a standby take over."""
        arguments = ["promote", "-D", str(self._data), "-W"]
        subprocess.run([_postgres_program("pg_ctl"), *arguments], capture_output=True, check=True, **self.user())

    def url(self, schema: str | None = None, *, port: int | None = None) -> str:
        """The address of the database; tables go into the schema. `port` is for a proxy before it."""
        options = "" if schema is None else f"?options={quote(f'-csearch_path={schema}')}"
        return f"postgresql://sharpen:{self.password}@127.0.0.1:{port or self.port}/postgres{options}"

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement, on a connection that lasts as long as the server."""
        import psycopg

        try:
            cursor = self._connection.execute(sql, values or None)
        except psycopg.OperationalError:
            if not self._connection.closed or not self.is_ready():
                raise
            cursor = self._connection.execute(sql, values or None)  # a test had ended the connection
        return cursor.fetchall() if cursor.description else []

    def remove(self) -> None:
        if self._connection is not None:
            self._connection.close()
        super().remove()

    def new_schema(self) -> str:
        """The name of a schema that nobody has used, made and empty."""
        name = f"s_{secrets.token_hex(6)}"
        self.execute(f"CREATE SCHEMA {name}")
        return name

    def lend_schema(self) -> str:
        """A schema that nobody uses; it may have the tables of a store, without anything in them."""
        return self._spare.pop() if self._spare else self.new_schema()

    def take_back(self, schema: str) -> None:
        """Nobody uses this schema any more, and its tables are as the store made them."""
        self.execute(EMPTY_SCHEMA.format(schema))
        self._spare.append(schema)


class RedisServer(Server):
    """A server with one user; with `appendonly` it writes what it did before it answers."""

    def __init__(self, *, appendonly: bool = True, appendfsync: str = "always") -> None:
        super().__init__("redis")
        self.settings: Mapping[str, str] = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "requirepass": self.password,
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": appendfsync,
            "save": '""',
        }

    def command(self) -> list[str]:
        path = self.folder / "redis.conf"  # keeps the password out of the list of processes
        path.write_text("".join(f"{name} {value}\n" for name, value in self.settings.items()))
        return [find_program("redis-server", variable="REDIS_BIN"), str(path)]

    def is_ready(self) -> bool:
        import redis

        try:
            with redis.Redis.from_url(self.url(), socket_timeout=5) as client:
                return bool(client.ping())
        except redis.RedisError:  # it is not up yet, or still reads its file
            return False

    def url(self, *, port: int | None = None) -> str:
        """The address of the server. `port` is for a proxy before it."""
        return f"redis://:{self.password}@127.0.0.1:{port or self.port}/0"

    def new_prefix(self) -> str:
        """The beginning of names that nobody has used."""
        return f"s-{secrets.token_hex(6)}"


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that is gone when the block ends."""
    _postgres_program("postgres")
    server = PostgresServer()
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def redis_server(*, appendonly: bool = True, appendfsync: str = "always") -> Iterator[RedisServer]:
    """A Redis server that is gone when the block ends."""
    find_program("redis-server", variable="REDIS_BIN")
    server = RedisServer(appendonly=appendonly, appendfsync=appendfsync)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _postgres_program(name: str) -> str:
    return find_program(name, variable="POSTGRES_BIN", folders="/usr/lib/postgresql/*/bin")


def _wait(is_true: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < end, f"{otherwise} (within {PATIENCE_SECONDS} s)"
        time.sleep(0.01)


def _children(pid: int) -> list[int]:
    """The processes that a process has started; each may have a session of its own."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(child) for child in found.split()]


def _is_alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return not state.startswith(("Z", "X")) and bool(state)  # one that nobody has asked for its end is dead, too
