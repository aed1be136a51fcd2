"""The SQLite file: its schema, how it is opened, and how it moves from one version to the next.

Nothing is changed in a file that is not ours, is corrupt, may not be written or was made by a newer version.
"""

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

from ..errors import InvalidInputError, StoreFileError
from .ids import new_id

APPLICATION_ID = 0x53485250  # "SHRP"
HEADER = b"SQLite format 3\x00"

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;

CREATE TABLE rollouts (
    number INTEGER PRIMARY KEY,
    rollout_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    mode TEXT,
    start_time REAL NOT NULL,
    end_time REAL,
    resources_id TEXT,
    resources_version INTEGER,
    config TEXT,
    reward REAL,
    attempts INTEGER NOT NULL,
    last_span INTEGER NOT NULL,
    queue_place INTEGER,
    finish_number INTEGER,
    input TEXT,
    metadata TEXT
);
CREATE INDEX rollouts_queue ON rollouts (queue_place) WHERE queue_place IS NOT NULL;
CREATE INDEX rollouts_status ON rollouts (status);
CREATE UNIQUE INDEX rollouts_finished ON rollouts (finish_number) WHERE finish_number IS NOT NULL;

CREATE TABLE attempts (
    number INTEGER NOT NULL,
    sequence_id INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    start_time REAL NOT NULL,
    end_time REAL,
    status TEXT NOT NULL,
    worker_id TEXT,
    last_heartbeat_time REAL,
    metadata TEXT,
    deadline REAL,
    unwanted INTEGER NOT NULL,
    request_id TEXT,
    PRIMARY KEY (number, sequence_id)
) WITHOUT ROWID;
CREATE INDEX attempts_deadline ON attempts (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX attempts_open ON attempts (worker_id) WHERE end_time IS NULL;
CREATE INDEX attempts_unwanted ON attempts (worker_id) WHERE unwanted;
CREATE INDEX attempts_request ON attempts (request_id) WHERE request_id IS NOT NULL;

CREATE TABLE spans (
    id INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    sequence_id INTEGER NOT NULL,
    span_id TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    parent_id TEXT,
    name TEXT NOT NULL,
    start_time REAL,
    end_time REAL,
    data TEXT NOT NULL
);
CREATE UNIQUE INDEX spans_ids ON spans (number, attempt, span_id);

CREATE TABLE blobs (hash TEXT PRIMARY KEY, uses INTEGER NOT NULL, data BLOB NOT NULL);

CREATE TABLE resources (
    position INTEGER PRIMARY KEY,
    resources_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    create_time REAL NOT NULL,
    update_time REAL NOT NULL,
    data TEXT NOT NULL,
    request_id TEXT,
    UNIQUE (resources_id, version)
);
CREATE INDEX resources_request ON resources (request_id) WHERE request_id IS NOT NULL;

CREATE TABLE workers (
    worker_id TEXT PRIMARY KEY,
    status TEXT NOT NULL,
    heartbeat_stats TEXT,
    last_heartbeat_time REAL,
    last_dequeue_time REAL,
    last_busy_time REAL,
    last_idle_time REAL,
    current_rollout_id TEXT,
    current_attempt_id TEXT
) WITHOUT ROWID;

CREATE TRIGGER rollouts_added AFTER INSERT ON rollouts BEGIN
    INSERT INTO counters VALUES (new.status, 1) ON CONFLICT DO UPDATE SET value = value + 1;
END;
CREATE TRIGGER rollouts_moved AFTER UPDATE OF status ON rollouts WHEN new.status <> old.status BEGIN
    UPDATE counters SET value = value - 1 WHERE name = old.status;
    INSERT INTO counters VALUES (new.status, 1) ON CONFLICT DO UPDATE SET value = value + 1;
END;
CREATE TRIGGER rollouts_deleted AFTER DELETE ON rollouts BEGIN
    UPDATE counters SET value = value - 1 WHERE name = old.status;
    UPDATE counters SET value = value - old.attempts WHERE name = 'attempts';
END;
INSERT INTO counters VALUES ('attempts', 0), ('spans', 0), ('finished', 0);
"""


def _create(connection: sqlite3.Connection) -> None:
    for statement in _statements(SCHEMA):
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES ('store_id', ?)", (new_id("st"),))


def _statements(script: str) -> list[str]:
    """Single statements: `executescript` would commit the transaction that a migration runs in."""
    found, begun = [], ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            found.append(begun)
            begun = ""
    return [statement for statement in found if statement.strip()]


# Step n turns a file of version n into one of version n + 1; a new file starts at version 0.
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_create]


def parse_path(database_url: str | os.PathLike[str]) -> Path:
    """The file that a URL such as `sqlite:///runs/store.db` or a plain path names."""
    text = os.fspath(database_url)
    if "://" in text:
        if not text.startswith("sqlite:///"):
            raise InvalidInputError(f"database_url is {text!r}: use sqlite:///PATH or a plain path")
        text = text.removeprefix("sqlite:///")
    if text in ("", ":memory:"):
        raise InvalidInputError(f"database_url is {os.fspath(database_url)!r}: it names no file; InMemoryLightningStore keeps things in memory")
    return Path(text)


def check_file(path: Path) -> None:
    """Refuse a file that cannot become a store, before anything touches it."""
    if not path.parent.is_dir():
        raise StoreFileError(f"the folder {str(path.parent)!r} of the store file does not exist: create it first")
    if not path.exists():
        if not os.access(path.parent, os.W_OK):
            raise StoreFileError(f"the folder {str(path.parent)!r} may not be written, so no store can be made there")
        return
    if not stat.S_ISREG(path.stat().st_mode):
        raise StoreFileError(f"{str(path)!r} is not a file")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreFileError(f"{str(path)!r} may not be read and written by this user")
    with path.open("rb") as file:
        head = file.read(100)
    if not head:
        return
    if not head.startswith(HEADER) or len(head) < 100:
        raise StoreFileError(f"{str(path)!r} is not a SQLite file, or is damaged: choose another file, or restore a backup")
    version, application = int.from_bytes(head[60:64]), int.from_bytes(head[68:72])
    _check_version(path, version, application)


def _check_version(path: Path, version: int, application: int) -> None:
    if version > len(MIGRATIONS):
        raise StoreFileError(
            f"{str(path)!r} has version {version}, and this Sharpen knows up to {len(MIGRATIONS)}: upgrade Sharpen"
        )
    if application not in (0, APPLICATION_ID):
        raise StoreFileError(f"{str(path)!r} belongs to another program (application id {application:#x})")


def connect(path: Path, *, synchronous: str, busy_seconds: float) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread under the caller's lock."""
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA cache_size = -32000")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def prepare(connection: sqlite3.Connection, path: Path) -> str:
    """Bring the file to the newest version, in one transaction; gives the id of the store."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    _check_version(path, version, application)
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise StoreFileError(f"{str(path)!r} is a SQLite file of another program: choose another file")
    if version < len(MIGRATIONS):
        connection.execute("PRAGMA journal_mode = WAL")
        _migrate(connection)
    (store_id,) = connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchone()
    return str(store_id)


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it while this one waited for the lock.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for step in MIGRATIONS[version:]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
