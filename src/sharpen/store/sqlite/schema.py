"""The SQLite file: its schema, how it is opened, and how it moves from one version to the next.

Nothing is changed in a file that is not ours, is corrupt, may not be written or was made by a newer version.
"""

import os
import sqlite3
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from ...errors import InvalidInputError, StoreFileError
from ..base import new_id

APPLICATION_ID = 0x53485250  # "SHRP"
HEADER = b"SQLite format 3\x00"

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- One row: how many rollouts are where, so that no question has to count them.
CREATE TABLE totals (
    queuing INTEGER NOT NULL DEFAULT 0,
    requeuing INTEGER NOT NULL DEFAULT 0,
    active INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    finished INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    spans_gone INTEGER NOT NULL DEFAULT 0
);
INSERT INTO totals DEFAULT VALUES;

-- A rollout with its latest attempt: a claim, a span and a completion each change this one row.
-- One index serves three questions. By phase, place is: its place in the queue (queued), its worker (active),
-- its number in the order of finishing (succeeded, failed, cancelled).
-- A request_id carries its position in the answer (`rq-…#00003`), so that the answer can be given again in order.
CREATE TABLE rollouts (
    number INTEGER PRIMARY KEY,
    rollout_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    phase TEXT NOT NULL,
    place NOT NULL,
    mode TEXT,
    start_time REAL NOT NULL,
    end_time REAL,
    resources_id TEXT,
    resources_version INTEGER,
    config TEXT,
    reward REAL,
    reward_span INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL,
    last_span INTEGER NOT NULL,
    input TEXT,
    metadata TEXT,
    attempt_id TEXT,
    attempt_start REAL,
    attempt_end REAL,
    attempt_status TEXT,
    worker_id TEXT,
    heartbeat REAL,
    attempt_metadata TEXT,
    deadline REAL,
    unwanted INTEGER NOT NULL DEFAULT 0,
    request_id TEXT
);
CREATE INDEX rollouts_place ON rollouts (phase, place);
CREATE INDEX rollouts_deadline ON rollouts (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX rollouts_unwanted ON rollouts (worker_id) WHERE unwanted;
CREATE INDEX rollouts_request ON rollouts (request_id) WHERE request_id IS NOT NULL;

-- Attempts that a later one has replaced.
CREATE TABLE old_attempts (
    number INTEGER NOT NULL,
    sequence_id INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    start_time REAL NOT NULL,
    end_time REAL,
    status TEXT NOT NULL,
    worker_id TEXT,
    last_heartbeat_time REAL,
    metadata TEXT,
    unwanted INTEGER NOT NULL,
    request_id TEXT,
    PRIMARY KEY (number, sequence_id)
) WITHOUT ROWID;
CREATE INDEX old_attempts_unwanted ON old_attempts (worker_id) WHERE unwanted;
CREATE INDEX old_attempts_request ON old_attempts (request_id) WHERE request_id IS NOT NULL;

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

-- Bodies of more than 64 kB, kept once.
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
    heartbeat_stats TEXT,
    last_heartbeat_time REAL,
    last_dequeue_time REAL,
    last_busy_time REAL,
    last_idle_time REAL
) WITHOUT ROWID;
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


# The group of a rollout; "@" where its metadata is kept elsewhere for its size.
GROUP = (
    "CASE WHEN substr(metadata, 1, 1) = '@' THEN '@' "
    "WHEN json_valid(metadata) AND json_type(metadata, '$.group') = 'text' THEN json_extract(metadata, '$.group') END"
)


def _add_search_indexes(connection: sqlite3.Connection) -> None:
    """For searches by reward and by group. A claim touches neither, and a completion only that of its reward."""
    connection.execute("CREATE INDEX rollouts_reward ON rollouts (reward) WHERE reward IS NOT NULL")
    connection.execute(f"CREATE INDEX rollouts_group ON rollouts ({GROUP}) WHERE metadata IS NOT NULL")


# Step n turns a file of version n into one of version n + 1; a new file starts at version 0.
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_create, _add_search_indexes]


def parse_path(database_url: str | os.PathLike[str]) -> Path:
    """The file that a URL such as `sqlite:///runs/store.db` or a plain path names."""
    text = os.fspath(database_url)
    if "://" in text:
        if not text.startswith("sqlite:///"):
            raise InvalidInputError(f"database_url is {text!r}: use sqlite:///PATH or a plain path")
        text = text.removeprefix("sqlite:///")
    if text in ("", ":memory:"):
        raise InvalidInputError(
            f"database_url is {os.fspath(database_url)!r}: use the path of a file, or InMemoryLightningStore"
        )
    return Path(text)


class OpenFiles:
    """The store files that this process has open.

    POSIX drops all locks of a process on a file when the process closes any descriptor of it: such a file may be read
    through SQLite only, or another process would take it for abandoned and remove its log.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[int, int]] = Counter()

    def has(self, path: Path) -> bool:
        found = path.stat()
        with self._lock:
            return self._counts[found.st_dev, found.st_ino] > 0

    def add(self, path: Path) -> tuple[int, int]:
        """From now on it is open; gives what `remove` wants."""
        found = path.stat()
        key = (found.st_dev, found.st_ino)
        with self._lock:
            self._counts[key] += 1
        return key

    def is_at(self, path: Path, key: tuple[int, int]) -> bool:
        """Whether the path still leads to the file that was opened; an error that does not tell is raised."""
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == key

    def remove(self, key: tuple[int, int]) -> None:
        with self._lock:
            self._counts[key] -= 1
            if self._counts[key] <= 0:
                del self._counts[key]


open_files = OpenFiles()


def check_file(path: Path) -> None:
    """Refuse a file that cannot become a store, before anything touches it."""
    if not path.parent.is_dir():
        raise StoreFileError(f"the folder {str(path.parent)!r} of the store file does not exist: create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreFileError(
            f"the folder {str(path.parent)!r} is not writable by this user: a store keeps its log beside its file"
        )
    if not path.exists():
        return
    if not stat.S_ISREG(path.stat().st_mode):
        raise StoreFileError(f"{str(path)!r} is not a regular file")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreFileError(f"{str(path)!r} is not readable and writable by this user: change its permissions")
    check_head(path)


def check_head(path: Path) -> None:
    """Refuse a file whose first bytes tell that it is no store, or is damaged."""
    if open_files.has(path):
        return  # checked when it was opened
    with path.open("rb") as file:
        head = file.read(100)
    if not head:
        return
    if not head.startswith(HEADER) or len(head) < 100:
        raise StoreFileError(f"{str(path)!r} is damaged or not a SQLite file: choose another file or restore a backup")
    version, application = int.from_bytes(head[60:64]), int.from_bytes(head[68:72])
    _check_version(path, version, application)
    if _is_cut_short(path, head):
        raise StoreFileError(f"{str(path)!r} is damaged (truncated): restore a backup")


def _is_cut_short(path: Path, head: bytes) -> bool:
    """Whether pages are missing. Where a log lies beside the file, they may be in there, and SQLite itself knows."""
    page_bytes, pages = int.from_bytes(head[16:18]), int.from_bytes(head[28:32])
    is_count_valid = head[24:28] == head[92:96]
    has_log = path.with_name(path.name + "-wal").exists()
    return is_count_valid and not has_log and path.stat().st_size < pages * page_bytes


def _check_version(path: Path, version: int, application: int) -> None:
    if application != APPLICATION_ID and (application or version):
        raise StoreFileError(
            f"{str(path)!r} belongs to another program (application id {application:#x}): choose another file"
        )
    if version > len(MIGRATIONS):
        raise StoreFileError(
            f"{str(path)!r} has version {version}, but this Sharpen supports up to {len(MIGRATIONS)}: upgrade Sharpen"
        )


def make_private(path: Path) -> None:
    """Make the file, if there is none, for its owner alone; SQLite gives its log and its index the same rights."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreFileError(f"the store file {str(path)!r} cannot be created: {error}") from error


def connect(path: Path, *, synchronous: str, busy_seconds: float) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread under the caller's lock."""
    make_private(path)
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    # A checkpoint syncs twice; most pages of the log are newer versions of the same few, so rarer is cheaper.
    connection.execute("PRAGMA wal_autocheckpoint = 8000")
    set_up(connection)
    return connection


def set_up(connection: sqlite3.Connection) -> None:
    """What every connection has, whether it writes or not."""
    connection.execute("PRAGMA cache_size = -32000")
    connection.execute("PRAGMA temp_store = MEMORY")


def read_store_id(connection: sqlite3.Connection) -> str:
    (store_id,) = connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchone()
    return str(store_id)


def prepare(connection: sqlite3.Connection, path: Path) -> str:
    """Bring the file to the newest version, in one transaction; gives the id of the store."""
    if version_of(connection, path) < len(MIGRATIONS):
        # Small pages: a change of one row writes its whole page to the log.
        connection.execute("PRAGMA page_size = 2048")
        _switch_to_wal(connection)
        _migrate(connection)
    return read_store_id(connection)


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The version of a file that is ours, or is empty (0)."""
    # One view for all questions: another process may be making the store at this moment.
    connection.execute("BEGIN")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        is_used = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
    finally:
        connection.execute("COMMIT")
    _check_version(path, version, application)
    if version == 0 and is_used:
        raise StoreFileError(f"{str(path)!r} is a SQLite file of another program: choose another file")
    return int(version)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Where two processes switch at once, SQLite fails one of them without waiting: so the waiting is done here."""
    (busy_milliseconds,) = connection.execute("PRAGMA busy_timeout").fetchone()
    end = time.monotonic() + busy_milliseconds / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(0.005)


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


# -- files that are only read -------------------------------------------------------------------------


class ReadOnlyFile:
    """How connections to a file that is only read are opened."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        # As texts: they are asked for at every question, and making a `Path` would take longer than the answer.
        self._file, self._log_file = str(path), str(self._beside("-wal"))
        check_readable(path)
        self._state = self._state_now()
        self._is_still = self._stands_still()

    def connect(self) -> sqlite3.Connection:
        options = "immutable=1" if self._is_still else "mode=ro"
        address = f"file:{quote(str(self.path.absolute()))}?{options}"
        connection = sqlite3.connect(
            address, uri=True, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            set_up(connection)
            connection.execute("PRAGMA query_only = ON")
            if version_of(connection, self.path) < 1:
                raise StoreFileError(
                    f"{str(self.path)!r} is empty and not a store yet: choose a store file that has been used"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def has_changed(self) -> bool:
        """Whether someone has written to a file that was taken to stand still: its connections are outdated."""
        if not self._is_still:
            return False
        state = self._state_now()
        if state == self._state:
            return False
        self._state, self._is_still = state, self._stands_still()
        return True

    def _stands_still(self) -> bool:
        if not self._log_bytes():
            return True
        if self._beside("-shm").exists() or os.access(self.path.parent, os.W_OK | os.X_OK):
            return False
        raise StoreFileError(
            f"{str(self.path)!r} has a write-ahead log that was not merged, and its folder is not writable: "
            f"copy both files ({self.path.name} and {self.path.name}-wal) to a writable folder and open the copy"
        )

    def _state_now(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            raise StoreFileError(f"the store file {str(self.path)!r} no longer exists") from None
        return found.st_mtime_ns, found.st_size, self._log_bytes()

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._log_file).st_size
        except FileNotFoundError:
            return 0

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)


def check_readable(path: Path) -> None:
    """Refuse a file that cannot be read as a store."""
    if not path.exists():
        raise StoreFileError(f"the store file {str(path)!r} does not exist")
    if not stat.S_ISREG(path.stat().st_mode):
        raise StoreFileError(f"{str(path)!r} is not a regular file")
    if not os.access(path, os.R_OK):
        raise StoreFileError(f"{str(path)!r} is not readable by this user: change its permissions")
    check_head(path)
