"""One connection: statements travel together, each prepared once, and their answers are read in one go.

This stands directly on libpq's pipelines, since `psycopg`'s cursors cost several times as much for each statement.
Waiting for the server is done without the interpreter's lock.
"""

import select
from collections.abc import Sequence
from itertools import count, takewhile
from typing import Any

from psycopg import Connection, Error, OperationalError, errors, pq
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGresult

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

    def __init__(self, connection: "Connection[Any]") -> None:
        self.connection = connection
        self._pg = connection.pgconn
        self._pg.nonblocking = 1
        self._prepared: set[bytes] = set()
        self._transformer = Transformer(connection)
        self._readable = select.poll()
        self._readable.register(self._pg.socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(self._pg.socket, select.POLLIN | select.POLLOUT)
        self.backend_pid = self._pg.backend_pid

    @property
    def is_in_transaction(self) -> bool:
        return self._pg.transaction_status != pq.TransactionStatus.IDLE

    def ask(self, batch: Sequence[Query], *, surely: int | None = None) -> "list[PGresult]":
        """The answers to all statements of a batch, in one round trip; the first error is raised.

        Where only the first ones are wanted `surely`, an error after these cuts the answers short.
        """
        answers: list[PGresult] = []
        try:
            self._receive(self._send(batch), answers)
        except OperationalError as error:
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

    def copy(self, sql: str, data: bytes) -> None:
        """Send data for a COPY; the pipeline is empty."""
        try:
            with self.connection.cursor().copy(sql.encode()) as copy:
                copy.write(data)
        except Error as error:
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
                raise OperationalError("the server sent two results for one statement")
        if self._next().status != pq.ExecStatus.PIPELINE_SYNC:
            raise OperationalError("the server sent more results than expected")
        self._pg.exit_pipeline_mode()
        if failed is not None:
            raise self._error(failed, [])

    def _next(self) -> "PGresult":
        answer = self._next_or_none()
        if answer is None:
            raise OperationalError(self._pg.get_error_message() or "the server closed the connection")
        if answer.status == pq.ExecStatus.FATAL_ERROR and self._pg.status == pq.ConnStatus.BAD:
            raise OperationalError(answer.get_error_message())
        return answer

    def _next_or_none(self) -> "PGresult | None":
        pg = self._pg
        while pg.is_busy():
            if not self._readable.poll(ANSWER_SECONDS * 1000):
                raise OperationalError(f"the server has not responded for {ANSWER_SECONDS} s")
            pg.consume_input()
        return pg.get_result()

    def _error(self, answer: "PGresult", before: "list[PGresult]") -> Exception:
        error: Error = errors.error_from_result(answer)
        return Lost(error, before) if isinstance(error, _FATAL) else error
