"""Connections to the database: how one is opened, and how statements travel over it.

Statements travel together, each prepared once, and their answers are read in one go. This stands directly on libpq's
pipelines: the five statements of a claim and its outcome take about 35 us of CPU and 0.1 ms in two trips, through
`psycopg`'s cursors and pipeline 250 us and 0.6 ms. Waiting for the server is done without the interpreter's lock. The
password of the database is shown nowhere.
"""

import math
import select
import time
from collections.abc import Iterable, Sequence
from itertools import count, takewhile
from typing import Any

from ...errors import InvalidInputError, MissingExtraError, StoreFileError

try:
    import psycopg
    from psycopg import errors, pq
    from psycopg.adapt import Transformer
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq.abc import PGresult
except ImportError:
    raise MissingExtraError.of("psycopg", extra="postgres", feature="PostgresStore") from None

OLDEST_VERSION = 120_000
_UNREADABLE = (
    "database_url is not a valid URL: use postgresql://user:password@host:5432/database and percent-encode special "
    "characters (@ / : %), for example @ as %40"
)
FROZEN_SECONDS = 60  # a process that stops in the middle of a transaction holds its rows no longer


class Address:
    """A URL of a database, with what every connection to it gets."""

    def __init__(self, database_url: str, *, busy_seconds: float) -> None:
        if not isinstance(database_url, str) or not database_url.startswith(("postgresql://", "postgres://")):
            shown = str(database_url).split("@")[-1].split("?")[0]  # no password, also in a URL with a typing error
            raise InvalidInputError(f"database_url is {shown!r}: use postgresql://user:password@host:5432/database")
        try:
            given = conninfo_to_dict(database_url)
        except psycopg.Error:  # its text quotes the URL
            raise InvalidInputError(_UNREADABLE) from None
        if any("@" in str(given.get(name, "")) for name in ("host", "port", "dbname")):
            raise InvalidInputError(_UNREADABLE)  # a part of the password stands there
        seconds = max(2, math.ceil(busy_seconds))
        self._password = str(given.get("password") or "")
        self._options = {
            "connect_timeout": seconds,
            "keepalives_idle": seconds,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": seconds * 1000,
            "application_name": "sharpen",
            **given,
            "client_encoding": "utf8",
        }
        host = given.get("host") or given.get("hostaddr") or "local"
        port = f":{given['port']}" if given.get("port") else ""
        self.label = f"{host}{port}/{given.get('dbname') or given.get('user') or ''}"
        """Where it is, in words that anybody may read."""
        self.failure: tuple[float, psycopg.Error] | None = None
        """When and why the last connection, of any thread, could not be opened; None if it could."""

    def __repr__(self) -> str:
        return f"Address({self.label!r})"

    def words(self, error: BaseException) -> str:
        """What the server or the driver says, on one line and without the password."""
        text = " ".join(str(error).split())
        return text.replace(self._password, "***") if self._password else text

    def connect(self, *, lock_seconds: float, read_only: bool = False) -> "psycopg.Connection":
        """A connection in autocommit mode; raises what `psycopg.connect` does."""
        try:
            connection = psycopg.connect("", autocommit=True, prepare_threshold=None, **self._options)  # type: ignore[arg-type]
        except psycopg.Error as error:
            self.failure = time.monotonic(), error.with_traceback(None)
            raise
        self.failure = None
        try:
            self._check(connection)
            connection.execute(_settings(lock_seconds=lock_seconds, read_only=read_only).encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def is_starting(self) -> bool:
        """Whether a server is there that takes no connections yet: it starts, recovers from a crash, or stops."""
        # The reason of a refused connection is told in the language of the server; a ping reads its code.
        ping = psycopg.pq.PGconn.ping(make_conninfo("", **self._options).encode())
        return ping == psycopg.pq.Ping.REJECT

    def _check(self, connection: "psycopg.Connection") -> None:
        if connection.info.server_version < OLDEST_VERSION:
            raise StoreFileError(
                f"the database {self.label} is PostgreSQL {connection.info.server_version // 10_000}: "
                f"version {OLDEST_VERSION // 10_000} or newer is required"
            )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreFileError(
                f"the database {self.label} has the encoding {encoding}: create a database with encoding UTF8"
            )


def _settings(*, lock_seconds: float, read_only: bool) -> str:
    values = {
        "default_transaction_isolation": "'read committed'",
        "default_transaction_read_only": "on" if read_only else "off",
        # What the rules ask has one good plan each, by an index, also while a table is small or was never analysed.
        "enable_seqscan": "off",
        "plan_cache_mode": "force_generic_plan",
        "idle_in_transaction_session_timeout": FROZEN_SECONDS * 1000,
        "jit": "off",
        "lock_timeout": max(1, int(lock_seconds * 1000)),
        "statement_timeout": 0,
    }
    return "; ".join(f"SET {name} = {value}" for name, value in values.items())


# -- statements --------------------------------------------------------------------------------------

Value = str | int | float | bool | bytes | list[str] | list[bytes] | None
Row = tuple[Any, ...]
_BINARY = 1
ANSWER_SECONDS = 120  # a server that answers nothing for so long hangs
_names = count(1)
# The server says these before it closes the connection.
_FATAL = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, errors.IdleInTransactionSessionTimeout)


class Lost(Exception):
    """The connection broke while a batch was under way; `answers` are those of what was surely done."""

    def __init__(self, reason: BaseException | str, answers: "list[PGresult]") -> None:
        super().__init__(str(reason))
        self.answers = answers


class Statement:
    """SQL with `$1`, `$2`, …; it is prepared where it is used for the first time.

    Values travel as texts. Those that may be any bytes are marked with 1 in `formats`.
    """

    __slots__ = ("formats", "name", "sql")

    def __init__(self, sql: str, formats: Sequence[int] | None = None) -> None:
        self.sql = sql.encode()
        self.formats = formats
        self.name = b"s%d" % next(_names)


Query = tuple[Statement | str, Sequence[Value]]
_prepared: dict[str, Statement] = {}


def numbered(sql: str) -> str:
    """Return the SQL with `$1`, `$2`, … for its `?`."""
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))


def prepared(sql: str) -> Statement:
    """Return the statement for SQL with `?`, one of a fixed number."""
    found = _prepared.get(sql)
    return found or _prepared.setdefault(sql, Statement(numbered(sql)))


def _array(values: Sequence[str] | Sequence[bytes]) -> bytes:
    texts = (f"\\x{value.hex()}" if isinstance(value, bytes) else value for value in values)
    quoted = ('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)
    return f"{{{','.join(quoted)}}}".encode()


def _sent(value: Value) -> bytes | None:
    """A value as it travels: bytes as they are, anything else as text."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, list):
        return _array(value)
    # Numbers of other libraries show themselves in other ways.
    return repr(float(value) if isinstance(value, float) else int(value)).encode()


_ROLLBACK = Statement("ROLLBACK")


def _is_good(answer: PGresult) -> bool:
    return answer.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class Session:
    """A connection, used by one thread at a time."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection = connection
        self._pg = connection.pgconn
        self._pg.nonblocking = 1
        self._prepared: set[bytes] = set()
        self._transformer = Transformer(connection)
        self._readable = select.poll()
        self._readable.register(self._pg.socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(self._pg.socket, select.POLLIN | select.POLLOUT)

    def ask(self, batch: Sequence[Query], *, surely: int | None = None) -> "list[PGresult]":
        """The answers to all statements of a batch, in one round trip; the first error is raised.

        Where only the first ones are wanted `surely`, an error after these cuts the answers short.
        """
        answers: list[PGresult] = []
        try:
            self._receive(self._send(batch), answers)
        except psycopg.OperationalError as error:
            raise Lost(error, list(takewhile(_is_good, answers))) from error
        for place, answer in enumerate(answers):
            if answer.status == pq.ExecStatus.FATAL_ERROR:
                if surely is not None and place >= surely:
                    return answers[:place]
                raise self._error(answer, answers[:place])
        return answers

    def rows(self, answer: "PGresult") -> list[Row]:
        self._transformer.set_pgresult(answer)
        return self._transformer.load_rows(0, answer.ntuples, tuple)

    def query(self, statement: Statement | str, *values: Value) -> list[Row]:
        """The rows of one statement."""
        return self.rows(self.ask([(statement, values)])[0])

    def copy(self, sql: str, types: Sequence[str], rows: Iterable[Row]) -> None:
        """Send rows for a binary COPY; the pipeline is empty."""
        try:
            with self.connection.cursor().copy(sql.encode()) as copy:
                copy.set_types(types)
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:
            if self._pg.status == pq.ConnStatus.BAD or isinstance(error, _FATAL):
                raise Lost(error, []) from error
            raise

    @property
    def is_alive(self) -> bool:
        return bool(self._pg.status == pq.ConnStatus.OK)

    def rollback(self) -> None:
        if self._pg.transaction_status != pq.TransactionStatus.IDLE:
            self.ask([(_ROLLBACK, ())])

    def close(self) -> None:
        self.connection.close()

    def _send(self, batch: Sequence[Query]) -> list[bytes | None]:
        """Send it; gives for each answer to come the name of the statement that it prepares, None for a query."""
        pg, expected = self._pg, list[bytes | None]()
        sent = [[_sent(value) for value in values] for _, values in batch]  # before anything can be half sent
        pg.enter_pipeline_mode()
        for (statement, values), texts in zip(batch, sent, strict=True):
            if isinstance(statement, str):
                formats = [1 if type(value) is bytes else 0 for value in values]
                pg.send_query_params(statement.encode(), texts, None, formats, _BINARY)
            else:
                if statement.name not in self._prepared and statement.name not in expected:
                    pg.send_prepare(statement.name, statement.sql)
                    expected.append(statement.name)
                pg.send_query_prepared(statement.name, texts, statement.formats, _BINARY)
            expected.append(None)
        pg.pipeline_sync()
        while pg.flush():
            if any(event & select.POLLIN for _, event in self._either.poll()):
                pg.consume_input()
        return expected

    def _receive(self, expected: "list[bytes | None]", answers: "list[PGresult]") -> None:
        failed = None
        for name in expected:
            answer = self._next()
            if name is None:
                answers.append(answer)
            elif answer.status == pq.ExecStatus.COMMAND_OK:
                self._prepared.add(name)
            elif answer.status == pq.ExecStatus.FATAL_ERROR:
                failed = failed or answer
            if self._next_or_none() is not None:
                raise psycopg.OperationalError("the server sent two results for one statement")
        if self._next().status != pq.ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError("the server sent more results than expected")
        self._pg.exit_pipeline_mode()
        if failed is not None:
            raise self._error(failed, [])

    def _next(self) -> "PGresult":
        answer = self._next_or_none()
        if answer is None:
            raise psycopg.OperationalError(self._pg.get_error_message() or "the server closed the connection")
        if answer.status == pq.ExecStatus.FATAL_ERROR and self._pg.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError(answer.get_error_message())
        return answer

    def _next_or_none(self) -> "PGresult | None":
        pg = self._pg
        while pg.is_busy():
            if not self._readable.poll(ANSWER_SECONDS * 1000):
                raise psycopg.OperationalError(f"the server has not responded for {ANSWER_SECONDS} s")
            pg.consume_input()
        return pg.get_result()

    def _error(self, answer: "PGresult", before: "list[PGresult]") -> Exception:
        error: psycopg.Error = errors.error_from_result(answer)
        return Lost(error, before) if isinstance(error, _FATAL) else error
